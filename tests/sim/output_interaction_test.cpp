#include "sim/channels/output_interaction.hpp"

#include "sim/attention.hpp"
#include "sim/converted.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Case {
  std::string name;
  GroupSpec spec;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = [] {
    std::vector<Case> all{
        {"plain", {}},
        {"G = 1", {.G = 1}},
        {"G = 3", {.G = 3}},
        {"odd d, d_v larger", {.d = 5, .d_v = 17}},
        {"odd d, d_v smaller", {.d = 35, .d_v = 3}},
        {"d = 1, d_v = 1", {.G = 1, .d = 1, .d_v = 1}},
        {"no decoded rows", {.T = 40}},
        {"one token", {.l = 1, .T = 1}},
        {"one token, one decoded", {.l = 1, .T = 2}},
        {"two tokens", {.l = 2, .T = 3}},
        {"one row", {.T_q = 1}},
        {"rows from within the window", {.T_q = 12}},
        {"values far from 0", {.value_offset = 30.0}},
        {"sink", {.attention_sink = 0}},
        {"sink in mid prompt", {.attention_sink = 17}},
        {"sink among the recent", {.attention_sink = 39}},
        {"sink among the decoded", {.attention_sink = 42}},
        {"sink, values far from 0", {.value_offset = 30.0, .attention_sink = 0}},
        {"sink, logits + 200", {.logit_shift = 200.0, .attention_sink = 3}},
        {"logits + 200", {.logit_shift = 200.0}},
        {"logits - 200", {.logit_shift = -200.0}},
        {"logits times 20", {.logit_std = 20.0}},
        {"logits times 1e-3", {.logit_std = 1e-3}},
        {"sliding window 7", {.sliding_window = 7}},
        {"sliding window 1", {.sliding_window = 1}},
        {"sliding window longer than all", {.sliding_window = 64}},
        {"sliding window and a sink that leaves it", {.attention_sink = 20, .sliding_window = 7}},
        {"sliding window beyond the prompt", {.l = 20, .T = 48, .T_q = 12, .sliding_window = 9}},
        {"soft cap", {.logit_std = 20.0, .softcap = 15.0}},
        {"soft cap, all logits near it", {.logit_shift = 60.0, .softcap = 10.0}},
        {"soft cap far above", {.softcap = 1000.0}},
        {"soft cap and a sink", {.attention_sink = 4, .softcap = 100.0}},
        {"sink logit", {.sink_logit = 2.0}},
        {"sink logit far below", {.sink_logit = -300.0}},
        {"sink logit above", {.value_offset = 3.0, .sink_logit = 15.0}},
        {"sink logit far above", {.value_offset = 3.0, .sink_logit = 30.0}},
        {"sink logit and sink", {.attention_sink = 0, .sink_logit = 3.0}},
        {"non-causal", {.causal = false}},
        {"non-causal, sliding window 7", {.causal = false, .sliding_window = 7}},
        {"all at once", {.G = 3, .logit_std = 5.0, .sliding_window = 9, .softcap = 8.0, .sink_logit = 1.0}},
        // Tiles end after 64 keys and 252 or 256 columns, panels after 16 (float64) or 32 rows or channels.
        {"l = 64, 17 rows, d = 16", {.l = 64, .T = 66, .T_q = 17, .G = 1, .d = 16, .d_v = 33}},
        {"l = 253, 31 rows, d = 33", {.l = 253, .T = 256, .T_q = 31, .G = 1, .d = 33, .attention_sink = 251}},
        {"l = 257, 33 rows", {.l = 257, .T = 258, .T_q = 33, .G = 1, .sink_logit = 1.0}},
        {"l = 270, 70 rows, sliding window 130",
         {.l = 270, .T = 290, .T_q = 70, .G = 1, .logit_std = 3.0, .sliding_window = 130}},
    };
    for (std::size_t n = 0; n < all.size(); ++n) all[n].spec.seed = 800 + n;
    return all;
  }();
  return list;
}

/// All but the recent, all, none, half of half a cache, and a cache without most of what is recent.
std::vector<PrunableKeys> key_sets(Index l) {
  PrunableKeys sparse{every(l, 2, 0), every(l, 4, 0)}, old{every(l, 1, 0), every(l, 3, 1)};
  std::fill(old.cache.begin() + l / 2, old.cache.end(), std::uint8_t{0});
  std::fill(old.prunable.begin() + l / 2, old.prunable.end(), std::uint8_t{0});
  return {prompt_keys(l, 8), prompt_keys(l, 0), prompt_keys(l, l), sparse, old};
}

std::vector<Rows> row_sets(const HeadGroup<double>& group) {
  std::vector<Rows> sets{window_rows(group.l, group.first_query(), 10),
                         window_rows(group.l, group.first_query(), 1),
                         {group.first_query(), group.T_all()}};
  std::erase_if(sets, [](Rows rows) { return rows.count() == 0; });
  return sets;
}

/// o_i with the channels of `scaled` of the prunable keys multiplied by `factor`, by brute force.
Vector<double> output_with(HeadGroup<double> group, Index g, Index i, const PrunableKeys& keys,
                           const std::vector<Index>& scaled, double factor) {
  for (Index p = 0; p < group.l; ++p)
    if (keys.prunable[static_cast<std::size_t>(p)] != 0)
      for (const Index c : scaled) group.k(p, c) *= factor;
  Vector<double> z = attention_logits(group, g, i).z;
  for (Index p = 0; p < group.l; ++p)
    if (keys.cache[static_cast<std::size_t>(p)] == 0) z[p] = -std::numeric_limits<double>::infinity();
  return group.v.transpose() * attention_weights(group, g, z);
}

constexpr Tolerance of_largest(double part, double tiny = 0.0) {
  return {.of_largest = part, .floor = 1.0, .tiny = tiny};
}

template <class T>
void check_against_reference(const Tolerance& tolerance) {
  Workers one(1), three(3);
  for (const Case& c : cases()) {
    const HeadGroup<T> group = converted<T>(random_group(c.spec));
    const HeadGroup<double> judged = converted<double>(group);
    std::size_t number = 0;
    for (const PrunableKeys& keys : key_sets(c.spec.l)) {
      ++number;
      for (const Rows rows : row_sets(judged)) {
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
  check_against_reference<double>(of_largest(1e-9, 1e-290));
}

// A logit of 200 is known to 2e-5 in float32, and so is its weight; M is a square. Squares of weights below
// 1e-15 leave float32's range.
TEST_CASE("float32 output interactions agree with the definition", "[channels]") {
  check_against_reference<float>(of_largest(1e-4, 1e-30));
}

TEST_CASE("D is how the output changes as the prunable keys lose a channel", "[channels]") {
  for (const Case& c : cases()) {
    // There the next order is not small, or nothing changes within the output's own rounding.
    if (c.spec.l > 100 || std::abs(c.spec.logit_shift) > 100 || c.spec.attention_sink) continue;
    const HeadGroup<double> group = random_group(c.spec);
    for (const PrunableKeys& keys : key_sets(c.spec.l)) {
      const Rows rows{std::max(group.first_query(), group.T_all() - 12), group.T_all()};
      const auto D = output_derivatives_reference(group, rows, keys);
      REQUIRE(D.size() == group.q.size());
      for (Index g = 0; g < group.G(); ++g) {
        REQUIRE(static_cast<Index>(D[static_cast<std::size_t>(g)].size()) == rows.count());
        for (Index i = rows.begin; i < rows.end; i += 3) {
          const Matrix<double>& row =
              D[static_cast<std::size_t>(g)][static_cast<std::size_t>(i - rows.begin)];
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
