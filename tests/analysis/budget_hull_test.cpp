#include "analysis/budgets/loss_curve.hpp"
#include "tests/analysis/budget_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// The lower hull's value at every budget from `first` on: the least of all chords over it.
std::vector<double> hull_by_chords(std::span<const double> loss, std::size_t first) {
  std::vector<double> hull(loss.size(), 0);
  for (std::size_t b = first; b < loss.size(); ++b) {
    hull[b] = loss[b];
    for (std::size_t i = first; i < b; ++i)
      for (std::size_t j = b + 1; j < loss.size(); ++j) {
        const double t = static_cast<double>(b - i) / static_cast<double>(j - i);
        hull[b] = std::min(hull[b], (1 - t) * loss[i] + t * loss[j]);
      }
  }
  return hull;
}

}  // namespace

TEST_CASE("loss curves never rise and end at 0", "[budgets]") {
  Draw draw(2);
  for (const std::string& kind : gain_kinds()) {
    const LossCurves curves = random_curves(kind, 3, 500, draw);
    for (Index h = 0; h < 3; ++h) {
      const auto loss = curves.loss(h);
      CHECK(loss.back() == 0);
      CHECK(std::is_sorted(loss.rbegin(), loss.rend()));
    }
  }
}

TEST_CASE("a loss curve by hand", "[budgets]") {
  LossCurves curves(2, 4);
  const std::vector<std::int32_t> order = {2, 0, 3, 1};
  curves.set(1, order, std::vector<double>{4, 1, 8, 2});
  CHECK(std::vector<double>(curves.loss(1).begin(), curves.loss(1).end()) ==
        std::vector<double>{15, 7, 3, 1, 0});
  CHECK(std::vector<double>(curves.gain(1).begin(), curves.gain(1).end()) == std::vector<double>{8, 4, 2, 1});
  CHECK(total_loss(curves, {4, 1}) == 7);
  CHECK(curves.losses().size() == 10);
}

TEST_CASE("small losses survive next to large ones", "[budgets]") {
  std::vector<double> gains = {1e18, 1e18};
  gains.resize(100002, 1e-3);
  const LossCurves curves = curves_of({gains});
  CHECK(curves.loss(0)[2] == Approx(100).epsilon(1e-15));
  CHECK(curves.loss(0)[0] == 2e18 + 100);
  // a million equal terms within a unit or two
  const std::vector<double> tenths(1000000, 0.1);
  CHECK(curves_of({tenths}).loss(0)[0] == Approx(100000).epsilon(2.5e-16));
}

TEST_CASE("pooled gains are the lower convex hull", "[budgets]") {
  Draw draw(3);
  for (const std::string& kind : gain_kinds())
    for (Index first : {0, 3}) {
      const LossCurves curves = random_curves(kind, 1, 30, draw);
      const auto loss = curves.loss(0);
      std::vector<HullBlock> blocks;
      append_hull(curves.gain(0), first, 0, blocks);
      const auto hull = hull_by_chords(loss, static_cast<std::size_t>(first));
      Index at = first;
      double last = std::numeric_limits<double>::infinity();
      CAPTURE(kind, first);
      for (const HullBlock& block : blocks) {
        REQUIRE(block.begin == at);
        REQUIRE(block.slope <= last);
        const double tolerance = 1e-12 * loss[0];
        for (Index b = block.begin; b <= block.end; ++b) {
          const double value = loss[block.end] + block.slope * static_cast<double>(block.end - b);
          REQUIRE(std::abs(value - hull[b]) <= tolerance);
        }
        at = block.end;
        last = block.slope;
      }
      REQUIRE(at == 30);
    }
}

TEST_CASE("the hull greedy fits every total", "[budgets]") {
  Draw draw(4);
  for (const std::string& kind : gain_kinds())
    for (Index lower : {0, 2}) {
      const LossCurves curves = random_curves(kind, 6, 17, draw);
      const HullGreedy greedy(curves, lower);
      for (Index total = 6 * lower; total <= 6 * 17; ++total)
        REQUIRE(fits(frame_of(2, 3, 17, total, lower), greedy.budgets(total)));
    }
}

TEST_CASE("hull blocks by hand", "[budgets]") {
  // gains 1 5 0 4 2: 1,5 pool to 3; 0,4 to 2 and with the 2 stay equal, apart
  std::vector<HullBlock> blocks;
  append_hull(std::vector<double>{1, 5, 0, 4, 2}, 0, 7, blocks);
  REQUIRE(blocks.size() == 3);
  CHECK((blocks[0].slope == 3 && blocks[0].begin == 0 && blocks[0].end == 2 && blocks[0].head == 7));
  CHECK((blocks[1].slope == 2 && blocks[1].begin == 2 && blocks[1].end == 4));
  CHECK((blocks[2].slope == 2 && blocks[2].begin == 4 && blocks[2].end == 5));

  const LossCurves curves = curves_of({{1, 5, 0, 4, 2}, {2.5, 2, 2, 2, 2}});
  const HullGreedy greedy(curves, 0);
  CHECK(greedy.budgets(1) == Budgets{1, 0});  // half of the first block, although its token gains 1 only
  CHECK(greedy.budgets(3) == Budgets{2, 1});
  CHECK(greedy.budgets(4) == Budgets{3, 1});  // equal slopes: the lower head first, block by block
  CHECK(greedy.budgets(6) == Budgets{5, 1});
  CHECK(greedy.budgets(7) == Budgets{5, 2});
  CHECK(total_loss(curves, greedy.budgets(1)) == 11 + 10.5);  // the curve's loss, not the hull's 9 + 10.5
  CHECK(greedy.unfinished(1) != nullptr);
  CHECK(greedy.unfinished(2) == nullptr);
  CHECK(greedy.unfinished(0) == nullptr);
  CHECK(greedy.unfinished(10) == nullptr);
}

TEST_CASE("equal importance fills head after head", "[budgets]") {
  const std::vector<double> thirds(50, 1.0 / 3);
  const HullGreedy greedy(curves_of({thirds, thirds, thirds}), 5);
  CHECK(greedy.budgets(15) == Budgets{5, 5, 5});
  CHECK(greedy.budgets(70) == Budgets{50, 15, 5});
  CHECK(greedy.budgets(112) == Budgets{50, 50, 12});
}
