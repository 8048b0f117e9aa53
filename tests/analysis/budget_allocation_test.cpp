#include "analysis/budgets/allocation.hpp"
#include "tests/analysis/budget_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// Scores of every head, falling: [heads, l].
std::vector<double> falling_scores(Index heads, Index l, Draw& draw) {
  std::vector<double> scores;
  for (Index h = 0; h < heads; ++h) {
    std::vector<double> of_head(l);
    for (double& score : of_head) score = std::floor(30 * draw.unit() * draw.unit());
    std::sort(of_head.rbegin(), of_head.rend());
    scores.insert(scores.end(), of_head.begin(), of_head.end());
  }
  return scores;
}

Index sum(const Budgets& budgets) { return std::accumulate(budgets.begin(), budgets.end(), Index{0}); }

}  // namespace

TEST_CASE("allocations keep sums and bounds", "[budgets]") {
  Draw draw(11);
  for (int round = 0; round < 1000; ++round) {
    const Index layers = 1 + draw.below(5), heads = 1 + draw.below(4), l = 1 + draw.below(60);
    const Index lower = draw.below(l), n = layers * heads;
    const Index total = lower * n + draw.below((l - lower) * n + 1);
    const BudgetFrame frame = frame_of(layers, heads, l, total, lower);
    const auto scores = falling_scores(n, l, draw);
    const Budgets even = uniform(frame), cone = pyramid(frame), best = ada(frame, scores);
    CAPTURE(layers, heads, l, total, lower, even, cone, best);
    REQUIRE(fits(frame, even));
    REQUIRE(fits(frame, cone));
    REQUIRE(fits(frame, best));
    REQUIRE(even.front() - even.back() <= 1);
    REQUIRE(std::is_sorted(even.rbegin(), even.rend()));
    REQUIRE(std::is_sorted(cone.rbegin(), cone.rend()));
    // ada moves tokens within a layer only
    for (Index layer = 0; layer < layers; ++layer)
      REQUIRE(std::accumulate(best.begin() + layer * heads, best.begin() + (layer + 1) * heads, Index{0}) ==
              std::accumulate(even.begin() + layer * heads, even.begin() + (layer + 1) * heads, Index{0}));
  }
}

TEST_CASE("uniform by hand", "[budgets]") {
  CHECK(uniform(frame_of(2, 2, 10, 22)) == Budgets{6, 6, 5, 5});
  CHECK(uniform(frame_of(1, 3, 10, 0)) == Budgets{0, 0, 0});
}

TEST_CASE("a pyramid by hand", "[budgets]") {
  // T = 100: min 5, max 195, steps of 190 / 4
  CHECK(pyramid(frame_of(5, 1, 1000, 500)) == Budgets{195, 148, 100, 52, 5});  // 147.5 and 52.5: lower first
  // max 195 is cut to l = 150, min = 50
  CHECK(pyramid(frame_of(5, 1, 150, 500)) == Budgets{150, 125, 100, 75, 50});
  // a floor of 20 lifts min, and max falls to 180
  CHECK(pyramid(frame_of(5, 1, 1000, 500, 20)) == Budgets{180, 140, 100, 60, 20});
  CHECK(pyramid(frame_of(1, 2, 1000, 201)) == Budgets{101, 100});
  CHECK(pyramid(frame_of(3, 2, 100, 600)) == Budgets(6, 100));
  CHECK(pyramid(frame_of(2, 2, 100, 40)) == Budgets{20, 20, 0, 0});  // 19.5, 19.5, 0.5, 0.5
  CHECK(pyramid(frame_of(2, 1, 1000, 200), {.beta = 2}) == Budgets{150, 50});
}

TEST_CASE("pyramids as published code has them", "[budgets]") {
  BudgetFrame frame = budget_frame(4, 2, 1000, 0.8);
  // kvpress, window 64: T = 200 (a hair below), min 10 < 64, so every layer has round(T)
  CHECK(pyramid(frame, {Semantics::kvpress, 20, 64}) == Budgets(8, 200));
  // window 8: min 10, max 390, steps of 126.67
  CHECK(pyramid(frame, {Semantics::kvpress, 20, 8}) == Budgets{390, 390, 263, 263, 137, 137, 10, 10});
  // sigma 0.5: T = 500, max 975 cut to 936, min 64, steps of 290.67
  frame = budget_frame(4, 1, 1000, 0.5);
  CHECK(pyramid(frame, {Semantics::kvpress, 20, 64}) == Budgets{936, 645, 355, 64});
  CHECK(pyramid(budget_frame(1, 2, 1000, 0.5), {Semantics::kvpress, 20, 8}) == Budgets{500, 500});
  CHECK(pyramid(budget_frame(4, 1, 1000, 0), {Semantics::kvpress, 20, 8}) == Budgets(4, 1000));
  const auto later = Semantics::kvpress_0_5_5;
  CHECK(pyramid(budget_frame(2, 1, 100, 0.999), {Semantics::kvpress, 20, 8}) == Budgets{0, 0});
  CHECK(pyramid(budget_frame(2, 1, 100, 0.999), {later, 20, 8}) == Budgets{1, 1});
  CHECK(pyramid(budget_frame(1, 2, 1000, 0.5), {later, 20, 8}) == Budgets{975, 975});
  // authors: T = 200 - 8 = 192, min 9, max 375, steps of 366 / 3 = 122, the window on top
  frame = budget_frame(4, 1, 1000, 0.8);
  CHECK(pyramid(frame, {Semantics::official, 20, 8}) == Budgets{383, 261, 139, 17});
  // 366 / 4 is 91.5, rounded down
  CHECK(pyramid(budget_frame(5, 1, 1000, 0.8), {Semantics::official, 20, 8}) ==
        Budgets{383, 292, 201, 110, 19});
  // half of the prompt and more: every layer alike
  CHECK(pyramid(budget_frame(4, 1, 1000, 0.4), {Semantics::official, 20, 8}) == Budgets(4, 600));
  CHECK(pyramid(budget_frame(2, 1, 100, 0.99), {Semantics::official, 20, 8}) == Budgets{1, 1});
}

TEST_CASE("ada by hand", "[budgets]") {
  // u = 5 each: one token each (0.2 of 5), eight for the best scores
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> scores = {9, 8, 7, 6, 5, 4, 3, 2,  //
                                      1, 1, 1, 1, 1, 1, 1, 1};
  CHECK(ada(frame_of(1, 2, 8, 10), scores) == Budgets{8, 2});
  CHECK(ada(frame_of(1, 2, 8, 10, 4), scores) == Budgets{6, 4});
  CHECK(ada(frame_of(1, 2, 8, 10), scores, {.alpha = 1}) == Budgets{5, 5});
  // layers apart: each has its own ten
  std::vector<double> two = scores;
  two.insert(two.end(), scores.begin() + 8, scores.end());
  two.insert(two.end(), scores.begin(), scores.begin() + 8);
  CHECK(ada(frame_of(2, 2, 8, 20), two) == Budgets{8, 2, 2, 8});
  // equal scores: the lower head first
  CHECK(ada(frame_of(1, 2, 8, 10), std::vector<double>(16, 1.0)) == Budgets{8, 2});
  // pinned tokens come before all scores
  const std::vector<double> pinned = {9, 8, 7, 6, 5, 4, 3, 2, inf, inf, inf, 1, 1, 1, 1, 1};
  CHECK(ada(frame_of(1, 2, 8, 6), pinned) == Budgets{3, 3});
  // 0.1 of 30 is 3
  std::vector<double> long_scores(120, 0.0);
  std::fill_n(long_scores.begin(), 60, 1.0);
  CHECK(ada(frame_of(1, 2, 60, 60), long_scores, {.alpha = 0.1}) == Budgets{57, 3});
}

TEST_CASE("ada as published code has it", "[budgets]") {
  std::vector<double> scores(200);
  for (std::size_t p = 0; p < 100; ++p) {
    scores[p] = 1000 - static_cast<double>(p);
    scores[100 + p] = 100 - static_cast<double>(p);
  }
  // kvpress: n = int(100 (1 - 0.9)) = 9, not 10; int(0.2 * 9) = 1 each, 16 to the first head
  CHECK(ada(budget_frame(1, 2, 100, 0.9), scores, {Semantics::kvpress, 0.2, 0}) == Budgets{17, 1});
  CHECK(ada(budget_frame(1, 2, 100, 0.96), scores, {Semantics::kvpress, 0.2, 0})[1] == 0);
  CHECK(ada(budget_frame(1, 2, 100, 0.96), scores, {Semantics::kvpress_0_5_5, 0.2, 0})[1] == 1);
  CHECK(ada(budget_frame(1, 2, 100, 0.999), scores, {Semantics::kvpress, 0.2, 0}) == Budgets{0, 0});
  CHECK(ada(budget_frame(1, 2, 100, 0.999), scores, {Semantics::kvpress_0_5_5, 0.2, 0}) == Budgets{1, 1});
  // authors: T = 50 - 10, the first head has 80 of the 80 best behind its window: 80 / 2 + 20 and 0 + 20
  CHECK(ada(budget_frame(1, 2, 100, 0.5), scores, {Semantics::official, 0.5, 10}) == Budgets{70, 30});
  const Budgets all = ada(budget_frame(1, 2, 100, 0), scores, {Semantics::official, 0.5, 10});
  CHECK(sum(all) == 200);
}

TEST_CASE("duo makes those heads whole that lose most as streaming heads", "[budgets]") {
  Draw draw(12);
  for (int round = 0; round < 200; ++round) {
    const Index n = 1 + draw.below(6), l = 2 + draw.below(12), lower = draw.below(l);
    const Index whole = draw.below(n + 1), rest = whole < n ? draw.below(l - lower) : 0;
    const BudgetFrame frame = frame_of(1, n, l, lower * n + whole * (l - lower) + rest, lower);
    const LossCurves curves = random_curves(gain_kinds()[round % gain_kinds().size()], n, l, draw);
    const Budgets budgets = duo(frame, curves);
    CAPTURE(n, l, lower, whole, rest, budgets);
    REQUIRE(fits(frame, budgets));
    REQUIRE(std::ranges::count(budgets, lower + rest) >= (rest > 0 ? 1 : 0));
    // No other choice of as many whole heads among streaming ones loses less.
    double best = std::numeric_limits<double>::infinity(), found = 0;
    for (unsigned chosen = 0; chosen < 1U << n; ++chosen) {
      if (std::popcount(chosen) != whole) continue;
      double lost = 0;
      for (Index h = 0; h < n; ++h)
        if ((chosen >> h & 1U) == 0) lost += curves.loss(h)[lower];
      best = std::min(best, lost);
    }
    for (Index h = 0; h < n; ++h)
      if (budgets[h] < l) found += curves.loss(h)[lower];
    REQUIRE(found <= best * (1 + 1e-12));
  }
  const BudgetFrame frame = frame_of(1, 3, 4, 7, 1);
  CHECK(duo(frame, curves_of({{0, 1, 1, 1}, {9, 0, 0, 2}, {0, 0, 3, 0}})) == Budgets{4, 1, 2});
}

TEST_CASE("lu_without_gap keeps the most important tokens of all heads, wherever an order puts them",
          "[budgets]") {
  Draw draw(23);
  for (const std::string& kind : gain_kinds()) {
    for (int round = 0; round < 30; ++round) {
      const Index layers = 1 + draw.below(3), heads = 1 + draw.below(3), l = 1 + draw.below(30);
      const Index n = layers * heads, lower = draw.below(l);
      const Index total = lower * n + draw.below((l - lower) * n + 1);
      const LossCurves curves = random_curves(kind, n, l, draw);
      const BudgetFrame frame = frame_of(layers, heads, l, total, lower);
      const HullGreedy greedy(curves, lower);
      const Allocation found =
          allocate(BudgetMethod::lu_without_gap, {.frame = frame, .curves = curves, .greedy = greedy});
      CAPTURE(kind, layers, heads, l, total, lower, found.budgets);
      REQUIRE(fits(frame, found.budgets));
      // Brute force: every head's `lower` best, then the best of all.
      double least = 0, by_best = 0;
      std::vector<double> rest;
      for (Index head = 0; head < n; ++head) {
        std::vector<double> gains(curves.gain(head).begin(), curves.gain(head).end());
        std::sort(gains.rbegin(), gains.rend());
        rest.insert(rest.end(), gains.begin() + lower, gains.end());
        by_best += std::accumulate(gains.begin() + found.budgets[head], gains.end(), 0.0);
        REQUIRE(found.loss[head] == curves.loss(head)[found.budgets[head]]);
        REQUIRE(found.loss[head] >= by_importance(curves).loss(head)[found.budgets[head]]);
      }
      std::sort(rest.rbegin(), rest.rend());
      least = std::accumulate(rest.begin() + (total - lower * n), rest.end(), 0.0);
      REQUIRE(by_best == Approx(least).epsilon(1e-12).margin(1e-300));
    }
  }
  // A head whose order is right already: the same as lu.
  const LossCurves falling = random_curves("falling", 4, 40, draw);
  const BudgetFrame frame = frame_of(2, 2, 40, 50);
  const HullGreedy greedy(falling, 0);
  const AllocationInput input{.frame = frame, .curves = falling, .greedy = greedy};
  CHECK(allocate(BudgetMethod::lu_without_gap, input).budgets == allocate(BudgetMethod::lu, input).budgets);
}
