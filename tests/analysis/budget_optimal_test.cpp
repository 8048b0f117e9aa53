#include "analysis/budgets/loss_curve.hpp"
#include "tests/analysis/budget_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <limits>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

Budgets optimum(const BudgetFrame& frame, const LossCurves& curves, OptimalSearch* search = nullptr) {
  return optimal(frame, curves, HullGreedy(curves, frame.lower), search);
}

/// Every way to divide the total.
double least_by_search(const BudgetFrame& frame, const LossCurves& curves, Index head, Index left) {
  if (head == frame.all_heads()) return left == 0 ? 0 : std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  for (Index b = frame.lower; b <= std::min(frame.l, left); ++b)
    least = std::min(least, curves.loss(head)[b] + least_by_search(frame, curves, head + 1, left - b));
  return least;
}

/// The plain programme: least[n] for every n tokens given to the heads so far.
double least_by_table(const BudgetFrame& frame, const LossCurves& curves) {
  const double never = std::numeric_limits<double>::infinity();
  std::vector<double> least(frame.total + 1, never);
  least[0] = 0;
  for (Index h = 0; h < frame.all_heads(); ++h) {
    std::vector<double> next(least.size(), never);
    for (Index n = 0; n <= frame.total; ++n)
      for (Index b = frame.lower; b <= std::min(frame.l, frame.total - n); ++b) {
        double& at = next[n + b];
        at = std::min(at, least[n] + curves.loss(h)[b]);
      }
    least = next;
  }
  return least.back();
}

/// Curves of kinds drawn head by head.
LossCurves mixed_curves(Index heads, Index l, Draw& draw) {
  std::vector<std::vector<double>> gains;
  const auto& kinds = gain_kinds();
  for (Index h = 0; h < heads; ++h)
    gains.push_back(random_gains(kinds[draw.below(std::ssize(kinds))], l, draw));
  return curves_of(gains);
}

void check_optimal(const BudgetFrame& frame, const LossCurves& curves, double least) {
  const Budgets budgets = optimum(frame, curves);
  CAPTURE(frame.layers, frame.heads, frame.l, frame.total, frame.lower, budgets);
  REQUIRE(fits(frame, budgets));
  const double loss = total_loss(curves, budgets);
  REQUIRE(std::abs(loss - least) <= 1e-14 * least);
  REQUIRE(loss <= total_loss(curves, HullGreedy(curves, frame.lower).budgets(frame.total)));
}

}  // namespace

TEST_CASE("the optimum of small cases is the least of all divisions", "[budgets]") {
  Draw draw(5);
  for (int round = 0; round < 150; ++round)
    for (std::size_t kind = 0; kind <= gain_kinds().size(); ++kind) {
      const Index heads = 1 + draw.below(4), l = 1 + draw.below(9), lower = draw.below(std::min<Index>(l, 3));
      const Index total = lower * heads + draw.below((l - lower) * heads + 1);
      const BudgetFrame frame = frame_of(1, heads, l, total, lower);
      const LossCurves curves = kind < gain_kinds().size() ? random_curves(gain_kinds()[kind], heads, l, draw)
                                                           : mixed_curves(heads, l, draw);
      check_optimal(frame, curves, least_by_search(frame, curves, 0, total));
    }
}

TEST_CASE("the optimum of six heads of 200 tokens is the plain programme's", "[budgets]") {
  Draw draw(6);
  int below_greedy = 0, rounds = 0;
  for (std::size_t kind = 0; kind <= gain_kinds().size(); ++kind)
    for (Index total : {7, 150, 411, 600, 1000, 1199}) {
      const LossCurves curves = kind < gain_kinds().size() ? random_curves(gain_kinds()[kind], 6, 200, draw)
                                                           : mixed_curves(6, 200, draw);
      const BudgetFrame frame = frame_of(2, 3, 200, total, total < 18 ? 0 : 3);
      const double least = least_by_table(frame, curves);
      check_optimal(frame, curves, least);
      OptimalSearch search;
      optimum(frame, curves, &search);
      rounds += search.rounds > 0;
      below_greedy +=
          least < total_loss(curves, HullGreedy(curves, frame.lower).budgets(total)) * (1 - 1e-12);
    }
  // the cases ask something of the search
  CHECK(rounds > 20);
  CHECK(below_greedy > 15);
}

TEST_CASE("the optimum leaves the hull where that pays", "[budgets]") {
  // Hull slopes 3 (three tokens) and 2.5 (two): the greedy opens the first block and gains nothing by it.
  const LossCurves curves = curves_of({{0, 0, 9}, {2, 3, 0}});
  OptimalSearch search;
  CHECK(HullGreedy(curves, 0).budgets(1) == Budgets{1, 0});
  CHECK(optimum(frame_of(1, 2, 3, 1), curves, &search) == Budgets{0, 1});  // half a block
  CHECK(search.rounds > 0);
  CHECK(HullGreedy(curves, 0).budgets(4) == Budgets{3, 1});
  CHECK(optimum(frame_of(1, 2, 3, 4), curves, &search) == Budgets{3, 1});
}

TEST_CASE("convex curves need no search", "[budgets]") {
  Draw draw(7);
  std::vector<std::vector<double>> gains;
  for (int h = 0; h < 8; ++h) {
    gains.push_back(random_gains("heavy", 300, draw));
    std::sort(gains.back().rbegin(), gains.back().rend());
  }
  const LossCurves curves = curves_of(gains);
  for (Index total : {0, 1, 77, 1200, 2399, 2400}) {
    OptimalSearch search;
    CHECK(optimum(frame_of(2, 4, 300, total), curves, &search) == HullGreedy(curves, 0).budgets(total));
    CHECK(search.rounds == 0);
  }
}

TEST_CASE("nothing to give and everything to give", "[budgets]") {
  Draw draw(8);
  for (const std::string& kind : gain_kinds()) {
    const LossCurves curves = random_curves(kind, 4, 12, draw);
    CHECK(optimum(frame_of(2, 2, 12, 0), curves) == Budgets{0, 0, 0, 0});
    CHECK(optimum(frame_of(2, 2, 12, 48), curves) == Budgets{12, 12, 12, 12});
    CHECK(optimum(frame_of(2, 2, 12, 20, 5), curves) == Budgets{5, 5, 5, 5});
    const LossCurves one = random_curves(kind, 1, 12, draw);
    for (Index total = 0; total <= 12; ++total)
      CHECK(optimum(frame_of(1, 1, 12, total), one) == Budgets{total});
  }
}

TEST_CASE("plateaus of thousands of tokens stay small", "[budgets]") {
  Draw draw(9);
  std::vector<std::vector<double>> zeros(64, std::vector<double>(2000, 0.0));
  OptimalSearch search;
  CHECK(fits(frame_of(8, 8, 2000, 12345), optimum(frame_of(8, 8, 2000, 12345), curves_of(zeros), &search)));
  CHECK(search.rounds == 0);
  // a few tokens of importance, late in the order, between thousands of none
  for (auto& gains : zeros)
    for (int k = 0; k < 5; ++k) gains[draw.below(2000)] = 1 + draw.unit();
  const LossCurves curves = curves_of(zeros);
  for (Index total : {500, 12345, 60000}) {
    const BudgetFrame frame = frame_of(8, 8, 2000, total);
    const Budgets budgets = optimum(frame, curves, &search);
    CHECK(fits(frame, budgets));
    CHECK(total_loss(curves, budgets) <= total_loss(curves, HullGreedy(curves, 0).budgets(total)));
    CHECK(search.peak_states < 100000);
  }
}

TEST_CASE("scaling all importance leaves the budgets as they are", "[budgets]") {
  Draw draw(10);
  std::vector<std::vector<double>> gains, scaled;
  for (int h = 0; h < 6; ++h) gains.push_back(random_gains("heavy", 120, draw));
  for (const double factor : {0x1p-900, 0x1p-40, 0x1p300}) {
    scaled = gains;
    for (auto& of_head : scaled)
      for (double& gain : of_head) gain *= factor;
    for (Index total : {31, 333, 700})
      CHECK(optimum(frame_of(2, 3, 120, total), curves_of(scaled)) ==
            optimum(frame_of(2, 3, 120, total), curves_of(gains)));
  }
}
