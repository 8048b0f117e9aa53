#include "data/error.hpp"
#include "sim/attention.hpp"
#include "sim/head_group.hpp"
#include "tests/sim/kept_outputs_cases.hpp"
#include "tests/sim/kept_outputs_rows.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

template <class T>
double total_sq(const PanelRows<T>& heads) {
  double sum = 0;
  for (const std::vector<T>& head : heads)
    for (const T x : head) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

}  // namespace

TEST_CASE("float64 output changes agree with brute force", "[kept_outputs]") {
  check_against_reference<double>(kept_changes<double>, 1e-9);
}

TEST_CASE("float32 output changes agree with brute force", "[kept_outputs]") {
  check_against_reference<float>(kept_changes<float>, kFloatTolerance);
}

TEST_CASE("errors at a sink of value 0 are right however much of a row it holds", "[kept_outputs]") {
  check_worthless_sinks<double>(kept_changes<double>, 1e-9);
  check_worthless_sinks<float>(kept_changes<float>, 1e-9);
}

TEST_CASE("outputs of 0 leave no change that passes for none", "[kept_outputs]") {
  check_no_outputs<double>(kept_changes<double>);
  check_no_outputs<float>(kept_changes<float>);
}

TEST_CASE("evicting one token changes the outputs by its exact_remove and oracle_future", "[kept_outputs]") {
  Workers workers(1);
  for (const KeptCase& c : kept_cases()) {
    if (c.spec.l > 100) continue;
    const HeadGroup<double> group = random_group(c.spec);
    std::vector<KeptSet> sets;
    for (Index p = 0; p < group.l; ++p) {
      sets.push_back(every(group.l, 1, 0));
      sets.back()[p] = 0;
    }
    const MetricSet there = available_metrics(group);
    const auto check = [&](TokenMetric metric, RowRange rows) {
      if (!there.contains(metric)) return;
      const TokenMetrics want = token_metrics_reference(group, {.window = 8, .metrics = {metric}});
      const OutputChanges<double> got = kept_changes(group, rows, sets, false, workers);
      for (Index p = 0; p < group.l; ++p) {
        INFO(c.name << ": " << name_of(metric) << ", position " << p);
        CHECK(std::abs(got.change_sq[p] - want[metric](0, p)) <= 1e-9 * got.full_sq + 1e-300);
      }
    };
    check(TokenMetric::exact_remove, window_rows(group.l, group.first_query(), 8));
    check(TokenMetric::oracle_future, future_rows(group.l, group.T_all(), group.first_query()));
  }
}

TEST_CASE("many kept sets at once, or threads, change no byte", "[kept_outputs]") {
  Workers alone(1), four(4);
  for (const KeptCase& c : kept_cases()) {
    INFO(c.name);
    const HeadGroup<float> group = converted<float>(random_group(c.spec));
    const std::vector<KeptSet> sets = kept_sets(c.spec);
    const RowRange rows{group.first_query(), group.T_all()};
    const OutputChanges<float> want = kept_changes(group, rows, sets, true, alone);
    const OutputChanges<float> got = kept_changes(group, rows, sets, true, four);
    CHECK(got.full_sq == want.full_sq);
    CHECK(got.change_sq == want.change_sq);
    CHECK(got.full == want.full);
    CHECK(got.change == want.change);
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const OutputChanges<float> one = kept_changes(group, rows, std::span(&sets[s], 1), true, four);
      CHECK(one.full_sq == want.full_sq);
      CHECK(one.change_sq[0] == want.change_sq[s]);
      CHECK(one.change[0] == want.change[s]);
    }
    CHECK(kept_changes(group, rows, std::vector<KeptSet>{}, false, alone).full_sq == want.full_sq);
  }
}

TEST_CASE("the vectors are each row's output and its change, and 0 in the padding", "[kept_outputs]") {
  Workers workers(2);
  constexpr double kRounding = 1e-11;  // of the outputs' own size, which is about 1
  for (const KeptCase& c : kept_cases()) {
    if (c.spec.l > 100 || c.spec.value_offset > 10) continue;
    const HeadGroup<double> group = random_group(c.spec);
    const std::vector<KeptSet> sets = kept_sets(c.spec);
    const RowRange rows{group.first_query(), group.T_all()};
    const OutputChanges<double> got = kept_changes(group, rows, sets, true, workers);
    REQUIRE(got.full.size() == group.q.size());
    REQUIRE(got.change.size() == sets.size());
    constexpr Index W = kPanelWidth<double>;
    const auto size = static_cast<std::size_t>((rows.count() + W - 1) / W * W * group.d_v());
    CHECK(total_sq(got.full) == Approx(got.full_sq).epsilon(1e-12).margin(1e-290));
    for (std::size_t s = 0; s < sets.size(); ++s) {
      INFO(c.name << ", set " << s);
      REQUIRE(got.change[s].size() == group.q.size());
      CHECK(total_sq(got.change[s]) == Approx(got.change_sq[s]).epsilon(1e-12).margin(1e-290));
      for (Index g = 0; g < group.G(); ++g) {
        const auto head = static_cast<std::size_t>(g);
        REQUIRE(got.full[head].size() == size);
        REQUIRE(got.change[s][head].size() == size);
        double off = 0;
        for (Index i = rows.begin; i < rows.end; ++i) {
          const Vector<double> before = output_of(group, g, i, every(group.l, 1, 0));
          const Vector<double> after = output_of(group, g, i, sets[s]);
          const Index r = i - rows.begin;
          off = std::max(off, (row_of(got.full[head], group.d_v(), r) - before).cwiseAbs().maxCoeff());
          const Vector<double> change = row_of(got.change[s][head], group.d_v(), r);
          off = std::max(off, (change - (after - before)).cwiseAbs().maxCoeff());
        }
        CHECK(off < kRounding);
      }
    }
  }
}
