#include "sim/eviction/exact/exact_error.hpp"

#include "tests/sim/greedy_checks.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// E(M), and E of every set one token away, against the judge.
void check_state(ExactError& state, const SetErrorJudge& judge, KeptSet kept) {
  constexpr double kRelative = 1e-9;
  const double error = judge.error(kept);
  REQUIRE(state.kept() == count(kept));
  CHECK(std::abs(state.error() - error) <= judge.slack(error, kRelative));
  double least = std::numeric_limits<double>::infinity();
  for (Index column = 0; column < std::ssize(kept); ++column) {
    std::uint8_t& token = kept[state.position(column)];
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

}  // namespace

TEST_CASE("the exact error and every change of one token stay right while all leave and return", "[greedy]") {
  Workers workers(1);
  std::mt19937_64 bits(9);
  for (const GreedyCase& c : greedy_cases()) {
    const HeadGroup<double> group = group_of(c, 21);
    for (const RowRange rows : row_sets(group, c.window)) {
      INFO(c.name << ", rows " << rows.begin << " to " << rows.end);
      const SetErrorJudge judge(group, rows);
      const KeptSet all(static_cast<std::size_t>(group.l), 1);
      ExactError state(group, rows, all, true, workers);
      check_leave_and_return(state, judge, group.l, bits, check_state);
    }
  }
}
