#include "sim/channels/output_interaction.hpp"

#include "sim/attention.hpp"
#include "sim/head_group.hpp"
#include "tests/sim/output_interaction_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// o_i with the channels of `scaled` of the prunable keys multiplied by `factor`, by brute force.
Vector<double> output_with(HeadGroup<double> group, Index g, Index i, const PrunableKeys& keys,
                           const std::vector<Index>& scaled, double factor) {
  for (Index p = 0; p < group.l; ++p)
    if (keys.prunable[p] != 0)
      for (const Index c : scaled) group.k(p, c) *= factor;
  Vector<double> z = attention_logits(group, g, i).z;
  for (Index p = 0; p < group.l; ++p)
    if (keys.cache[p] == 0) z[p] = -std::numeric_limits<double>::infinity();
  return group.v.transpose() * attention_weights(group, g, z);
}

template <class T>
void check_against_reference(const Tolerance& tolerance) {
  Workers one(1), three(3);
  for (const InteractionCase& c : interaction_cases()) {
    const HeadGroup<T> group = converted<T>(random_group(c.spec));
    const HeadGroup<double> judged = converted<double>(group);
    std::size_t number = 0;
    for (const PrunableKeys& keys : key_sets(c.spec.l)) {
      ++number;
      for (const RowRange rows : row_sets(judged)) {
        INFO(c.name << ", keys " << number << ", rows " << rows.begin << " to " << rows.end);
        const Matrix<double> got = output_interaction(group, rows, keys, one);
        CHECK(mismatch("M", output_interaction_reference(judged, rows, keys), got, tolerance) == "");
        CHECK(same_bytes(got, got.transpose()));
        CHECK(same_bytes(got, output_interaction(group, rows, keys, three)));
      }
    }
  }
}

}  // namespace

TEST_CASE("float64 output interactions agree with the definition", "[channels]") {
  check_against_reference<double>(kInteractionDouble);
}

TEST_CASE("float32 output interactions agree with the definition", "[channels]") {
  check_against_reference<float>(kInteractionSingle);
}

TEST_CASE("D is how the output changes as the prunable keys lose a channel", "[channels]") {
  for (const InteractionCase& c : interaction_cases()) {
    // There the next order is not small, or nothing changes within the output's own rounding.
    if (c.spec.l > 100 || std::abs(c.spec.logit_shift) > 100 || c.spec.attention_sink) continue;
    const HeadGroup<double> group = random_group(c.spec);
    for (const PrunableKeys& keys : key_sets(c.spec.l)) {
      const RowRange rows{std::max(group.first_query(), group.T_all() - 12), group.T_all()};
      const auto D = output_derivatives_reference(group, rows, keys);
      REQUIRE(D.size() == group.q.size());
      for (Index g = 0; g < group.G(); ++g) {
        REQUIRE(std::ssize(D[g]) == rows.count());
        for (Index i = rows.begin; i < rows.end; i += 3) {
          const Matrix<double>& row = D[g][i - rows.begin];
          const double eps = 1e-5 / std::max(1.0, c.spec.logit_std);
          std::vector<std::vector<Index>> sets;
          for (Index channel = 0; channel < group.d(); ++channel) sets.push_back({channel});
          sets.push_back({0, group.d() - 1});
          if (group.d() == 1) sets.pop_back();
          for (const std::vector<Index>& set : sets) {
            INFO(c.name << ", head " << g << ", row " << i << ", channel " << set[0]);
            const Vector<double> difference = (output_with(group, g, i, keys, set, 1 - eps) -
                                               output_with(group, g, i, keys, set, 1 + eps)) /
                                              (2 * eps);
            Vector<double> sum = Vector<double>::Zero(group.d_v());
            for (const Index channel : set) sum += row.row(channel).transpose();
            const double size = group.v.cwiseAbs().maxCoeff() * std::max(1.0, c.spec.logit_std);
            CHECK((difference - sum).cwiseAbs().maxCoeff() < 1e-8 * size);
          }
        }
      }
    }
  }
}
