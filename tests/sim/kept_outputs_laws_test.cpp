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

namespace {}  // namespace

TEST_CASE("rows in several parts add up to the whole", "[kept_outputs]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 70, .T = 90, .sliding_window = 40, .sink_logit = 0.5});
  const std::vector<KeptSet> sets{every(70, 1, 70), every(70, 2, 1), every(70, 1, 50), every(70, 9, 0)};
  const OutputChanges<double> whole = kept_changes(group, {30, 90}, sets, false, workers);
  for (const Index cut : {31, 46, 69, 70, 77, 89}) {
    const OutputChanges<double> first = kept_changes(group, {30, cut}, sets, false, workers);
    const OutputChanges<double> second = kept_changes(group, {cut, 90}, sets, false, workers);
    for (std::size_t s = 0; s < sets.size(); ++s)
      CHECK(first.change_sq[s] + second.change_sq[s] == Approx(whole.change_sq[s]).epsilon(1e-12));
    CHECK(first.full_sq + second.full_sq == Approx(whole.full_sq).epsilon(1e-12));
  }
}

TEST_CASE("permuting prompt keys with their values and the kept set changes nothing", "[kept_outputs]") {
  Workers workers(1);
  for (const bool causal : {true, false}) {
    const HeadGroup<double> group =
        random_group({.l = 300, .T = 310, .logit_std = 3.0, .causal = causal, .sink_logit = 1.0});
    HeadGroup<double> other = group;
    KeptSet kept = every(group.l, 3, 1), permuted(kept.size());
    for (Index p = 0; p < group.l; ++p) {
      const Index to = (p * 77 + 5) % group.l;  // 77 and 300 have no factor in common
      other.k.row(to) = group.k.row(p);
      other.v.row(to) = group.v.row(p);
      permuted[to] = kept[p];
    }
    // Decoded rows see the whole prompt; without a causal mask all do.
    const RowRange rows{causal ? group.l : 280, 310};
    const OutputChanges<double> want = kept_changes(group, rows, std::span(&kept, 1), false, workers);
    const OutputChanges<double> got = kept_changes(other, rows, std::span(&permuted, 1), false, workers);
    CHECK(got.full_sq == Approx(want.full_sq).epsilon(1e-12));
    CHECK(got.change_sq[0] == Approx(want.change_sq[0]).epsilon(1e-12));
  }
}

TEST_CASE("a row that is left with nothing to see has output 0", "[kept_outputs]") {
  Workers workers(1);
  // Rows 32 to 39 see the prompt only.
  const HeadGroup<double> group = random_group({.value_offset = 2.0});
  const KeptSet none = every(group.l, 1, group.l), late = every(group.l, 1, 36);
  const std::vector<KeptSet> sets{none, late};
  const OutputChanges<double> changes = kept_changes(group, {32, 40}, sets, true, workers);
  CHECK(changes.change_sq[0] == Approx(changes.full_sq).epsilon(1e-13));
  for (Index i = 32; i < 40; ++i) {
    const Vector<double> full = row_of(changes.full[0], 8, i - 32);
    const Vector<double> left = full + row_of(changes.change[1][0], 8, i - 32);
    CHECK((left.cwiseAbs().maxCoeff() < 1e-14) == (i < 36));
  }
  // Nor does a row beyond the reach of a sliding window, though its neighbours do.
  const HeadGroup<double> sliding = random_group({.l = 4, .T = 9, .sliding_window = 2});
  CHECK(kept_changes(sliding, {6, 9}, std::vector<KeptSet>{every(4, 1, 4)}, false, workers).change_sq[0] ==
        0.0);
}

// Two keys, one of which is kept: o = (e^a u + e^b w) / (e^a + e^b) becomes u.
TEST_CASE("two tokens and one query by hand", "[kept_outputs]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 2, .T = 2, .T_q = 1, .G = 1, .d = 1, .d_v = 2});
  group.rule.scale = 0.5;
  group.q[0](0, 0) = 2;
  group.k << std::log(3.0), 0;  // weights 3/4 and 1/4
  group.v << 1, 2, 5, -2;       // o = (2, 1)
  const std::vector<KeptSet> sets{{1, 0}, {0, 1}, {0, 0}};
  OutputChanges<double> changes = kept_changes(group, {1, 2}, sets, false, workers);
  CHECK(changes.full_sq == Approx(5));
  CHECK(changes.change_sq[0] == Approx(2));   // (1, 2) - (2, 1)
  CHECK(changes.change_sq[1] == Approx(18));  // (5, -2) - (2, 1)
  CHECK(changes.change_sq[2] == Approx(5));
  group.rule.sink_logit = {std::log(4.0)};  // weights 3/8, 1/8 and 4/8 for nothing: o = (1, 1/2)
  changes = kept_changes(group, {1, 2}, sets, false, workers);
  CHECK(changes.full_sq == Approx(1.25));
  CHECK(changes.change_sq[0] == Approx(16.0 / 49 + 25.0 / 196));  // 3/7 (1, 2) - (1, 1/2)
  CHECK(changes.change_sq[2] == Approx(1.25));
}

TEST_CASE("what reaches W_O adds up over the heads", "[kept_outputs]") {
  Workers workers(3);
  for (const Index rows : {1, 15, 16, 17, 40}) {
    const HeadGroup<double> group =
        random_group({.l = 40, .T = 41, .T_q = rows, .G = 3, .d_v = 5, .d_model = 13});
    const KeptSet kept = every(40, 4, 0);
    const RowRange all{group.first_query(), 41};
    const OutputChanges<double> changes = kept_changes(group, all, std::span(&kept, 1), true, workers);
    std::vector<LayerRows<double>> cases(2);
    for (const std::vector<double>& head : changes.change[0]) cases[0].push_back(&head);
    for (const std::vector<double>& head : changes.full) cases[1].push_back(&head);
    double want = 0, want_full = 0, apart = 0;
    for (Index i = all.begin; i < all.end; ++i) {
      Vector<double> sum = Vector<double>::Zero(13), full = sum;
      for (Index g = 0; g < 3; ++g) {
        const Vector<double> o = output_of(group, g, i, every(40, 1, 0));
        const Vector<double> change = output_of(group, g, i, kept) - o;
        full += group.wo[g].transpose() * o;
        const Vector<double> projected = group.wo[g].transpose() * change;
        sum += projected;
        apart += projected.squaredNorm();
      }
      want += sum.squaredNorm();
      want_full += full.squaredNorm();
    }
    CHECK(std::abs(want - apart) > 0.01 * want);
    const auto projected = [&](std::span<const LayerRows<double>> of, Workers& by) {
      return projected_sq<double>(of, group.wo, by);
    };
    const std::vector<double> found = projected(cases, workers);
    CHECK(found[0] == Approx(want).epsilon(1e-11));
    CHECK(found[1] == Approx(want_full).epsilon(1e-11));
    Workers alone(1);
    CHECK(projected(cases, alone) == found);
    CHECK(projected({&cases[1], 1}, alone) == std::vector{found[1]});
    CHECK(projected({}, alone).empty());
  }
}

TEST_CASE("logits and outputs beyond the type are an input error, not a number", "[kept_outputs]") {
  Workers workers(2);
  const auto changes = [&](auto type, const HeadGroup<double>& group) {
    const std::vector<KeptSet> sets{every(group.l, 2, 0)};
    return kept_changes(converted<decltype(type)>(group), {group.l - 8, group.l}, sets, false, workers);
  };
  HeadGroup<double> group = random_group({});
  CHECK_NOTHROW(changes(0.0f, group));
  // Logits of +inf, of -inf in a whole row, and inf - inf within one.
  for (const double sign : {1.0, -1.0, 0.0}) {
    INFO("sign " << sign);
    group = random_group({.G = 1, .d = 2});
    if (sign != 0.0) {
      group.q[0].setConstant(1e30);
      group.k.setConstant(sign * 1e30);
    } else {
      group.q[0].col(0).setConstant(1e30);
      group.q[0].col(1).setConstant(-1e30);
      group.k.row(35).setConstant(1e30);
    }
    CHECK_THROWS_AS(changes(0.0f, group), InputError);
    CHECK_NOTHROW(changes(0.0, group));
    for (HeadMatrix<double>& q : group.q) q *= 1e150;
    group.k *= 1e150;
    CHECK_THROWS_AS(changes(0.0, group), InputError);
  }
  group = random_group({});
  group.v *= 1e160;
  CHECK_THROWS_AS(changes(0.0, group), InputError);
  check_harmless_overflows([&](const HeadGroup<double>& of) { return changes(0.0f, of); });
}

TEST_CASE("output changes stop where they are asked to", "[kept_outputs]") {
  Workers stopped(2);
  stopped.stop();
  const std::vector<KeptSet> sets{every(40, 2, 0)};
  CHECK_THROWS_AS(kept_changes(random_group({}), {32, 40}, sets, false, stopped), Interrupted);
}
