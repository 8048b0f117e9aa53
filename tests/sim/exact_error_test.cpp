#include "sim/eviction/exact/exact_error.hpp"

#include "tests/sim/greedy_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// 0..l-1 in some order.
std::vector<Index> shuffled(Index l, std::mt19937_64& bits) {
  std::vector<Index> order(static_cast<std::size_t>(l));
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<Index>(i);
    std::swap(order[i], order[bits() % (i + 1)]);
  }
  return order;
}

/// E(M), and E of every set one token away, against the judge.
void check_state(ExactError& state, const SetErrorJudge& judge, KeptSet kept) {
  constexpr double kRelative = 1e-9;
  const double error = judge.error(kept);
  REQUIRE(state.kept() == count(kept));
  CHECK(std::abs(state.error() - error) <= judge.slack(error, kRelative));
  double least = std::numeric_limits<double>::infinity();
  for (Index column = 0; column < static_cast<Index>(kept.size()); ++column) {
    std::uint8_t& token = kept[static_cast<std::size_t>(state.position(column))];
    REQUIRE(token == (column < state.kept() ? 1 : 0));
    token ^= 1;
    const double changed = judge.error(kept), size = std::max(error, changed);
    token ^= 1;
    if (token == 1) least = std::min(least, changed);
    INFO("position " << state.position(column) << ", from " << error << " to " << changed);
    CHECK(std::abs(error + state.change(column) - changed) <= judge.slack(size, kRelative));
  }
  if (state.kept() == 0) return;
  const BestRemoval best = state.best_removal();
  CHECK(std::abs(best.error - least) <= judge.slack(least, kRelative) + 1e-13 * error);
}

/// The best removal with p in M, against the judge.
void check_removal_with(ExactError& state, const SetErrorJudge& judge, KeptSet kept, Index p) {
  const double before = judge.error(kept);
  kept[static_cast<std::size_t>(p)] = 1;
  double least = std::numeric_limits<double>::infinity(), size = std::max(before, judge.error(kept));
  for (Index q = 0; q < static_cast<Index>(kept.size()); ++q) {
    std::uint8_t& token = kept[static_cast<std::size_t>(q)];
    if (q == p || token == 0) continue;
    token = 0;
    least = std::min(least, judge.error(kept));
    token = 1;
  }
  const BestRemoval best = state.best_removal_with(p);
  INFO("with position " << p << ": without " << best.position << " " << best.error << ", best " << least);
  CHECK(std::abs(best.error - least) <= judge.slack(std::max(least, size), 1e-9));
}

}  // namespace

TEST_CASE("the exact error and every change of one token stay right while all leave and return", "[greedy]") {
  Workers workers(1);
  std::mt19937_64 bits(9);
  for (const GreedyCase& c : greedy_cases()) {
    const HeadGroup<double> group = group_of(c, 21);
    for (const Rows rows : row_sets(group, c.window)) {
      INFO(c.name << ", rows " << rows.begin << " to " << rows.end);
      const SetErrorJudge judge(group, rows);
      KeptSet kept(static_cast<std::size_t>(group.l), 1);
      ExactError state(group, rows, kept, true, workers);
      check_state(state, judge, kept);
      for (const Index p : shuffled(group.l, bits)) {
        INFO("removed " << p);
        state.remove(p);
        kept[static_cast<std::size_t>(p)] = 0;
        check_state(state, judge, kept);
      }
      for (const Index p : shuffled(group.l, bits)) {
        INFO("inserted " << p);
        if (count(kept) > 0) check_removal_with(state, judge, kept, p);
        state.insert(p);
        kept[static_cast<std::size_t>(p)] = 1;
        check_state(state, judge, kept);
      }
    }
  }
}
