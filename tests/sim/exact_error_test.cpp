#include "sim/eviction/exact/exact_error.hpp"

#include "tests/sim/greedy_checks.hpp"
#include "tests/support/catch.hpp"

#include <random>

using namespace kvreplay;
using namespace kvreplay::test;

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
      check_leave_and_return(state, judge, group.l, bits, check_neighbours);
    }
  }
}
