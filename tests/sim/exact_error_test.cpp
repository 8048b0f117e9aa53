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
      check_leave_and_return(state, judge, group, bits, check_neighbours);
    }
  }
}

TEST_CASE("what a pass in float32 leaves out is never the best token", "[greedy]") {
  constexpr Index l = 230;  // moves enough for several passes
  Workers workers(1);
  std::mt19937_64 bits(11);
  for (const GreedyCase& c : greedy_cases()) {
    GreedyCase longer = c;
    if (c.spec.l == GroupSpec{}.l) longer.spec.l = l, longer.spec.T = l + 6, longer.spec.T_q = l + 6;
    HeadGroup<double> group = group_of(longer, 33);
    for (const double size : {1.0, 1e-25, 1e25}) {
      group.v *= size;
      if (size == 1e-25)  // alike in every way: ties are left to float64
        for (Index p = group.l / 2; p < group.l; ++p) {
          group.k.row(p) = group.k.row(p - group.l / 2);
          group.v.row(p) = group.v.row(p - group.l / 2);
        }
      for (const RowRange rows : row_sets(group, longer.window)) {
        INFO(c.name << ", values times " << size << ", rows " << rows.begin << " to " << rows.end);
        const KeptSet all(group.l, 1);
        ExactError coarse(group, rows, all, false, workers), wide(group, rows, all, true, workers);
        Index differing = 0;
        while (coarse.kept() > 0) {
          const BestRemoval got = coarse.best_removal(), want = wide.best_removal();
          differing += got.position != want.position || got.error != want.error ? 1 : 0;
          // Now and then any token goes, a row's largest perhaps: what is followed moves far.
          const Index gone = coarse.kept() % 4 == 0 ? wide.position(static_cast<Index>(bits() % wide.kept()))
                                                    : want.position;
          coarse.remove(gone);
          wide.remove(gone);
        }
        CHECK(differing == 0);
      }
      group.v /= size;
    }
  }
}
