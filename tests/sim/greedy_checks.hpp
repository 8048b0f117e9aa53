#pragma once

#include "sim/eviction/exact/greedy.hpp"
#include "tests/sim/greedy_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvreplay::test {

/// The errors of a path are those of its kept sets, and every token that it evicts was the best to evict. The
/// second is looked at in every `stride`th step.
inline void check_path(const GreedyPath& path, const HeadGroup<double>& group, Rows rows,
                       std::size_t stride = 1) {
  constexpr double kRelative = 1e-9;
  const SetErrorJudge judge(group, rows);
  KeptSet kept(static_cast<std::size_t>(group.l), 1);
  REQUIRE(path.error.size() == path.evicted.size());
  for (std::size_t n = 0; n < path.evicted.size(); ++n) {
    std::uint8_t& evicted = kept.at(static_cast<std::size_t>(path.evicted[n]));
    REQUIRE(evicted == 1);
    double best = std::numeric_limits<double>::infinity();
    for (std::uint8_t& candidate : kept) {
      if (candidate == 0 || n % stride != 0) continue;
      candidate = 0;
      best = std::min(best, judge.error(kept));
      candidate = 1;
    }
    evicted = 0;
    const double chosen = judge.error(kept);
    INFO("step " << n << ", position " << path.evicted[n] << ", error " << chosen << ", best " << best);
    CHECK((n % stride != 0 || chosen - best <= judge.slack(best, kRelative)));
    CHECK(std::abs(path.error[n] - chosen) <= judge.slack(chosen, kRelative));
  }
}

/// The best error that one swap leads to.
inline double best_neighbour(const SetErrorJudge& judge, KeptSet kept) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t p = 0; p < kept.size(); ++p)
    for (std::size_t q = 0; q < kept.size(); ++q) {
      if (kept[p] != 0 || kept[q] == 0) continue;
      std::swap(kept[p], kept[q]);
      best = std::min(best, judge.error(kept));
      std::swap(kept[p], kept[q]);
    }
  return best;
}

/// What a search made of a start is no worse, and no swap makes it better. True where it is better.
inline bool check_exchange(const HeadGroup<double>& group, Rows rows, const KeptSet& start,
                           const KeptSet& kept) {
  const SetErrorJudge judge(group, rows);
  REQUIRE(kept.size() == start.size());
  REQUIRE(count(kept) == count(start));
  const double before = judge.error(start), error = judge.error(kept);
  CHECK(error <= before + judge.slack(before, 1e-12));
  CHECK(best_neighbour(judge, kept) >= error - judge.slack(error, 2e-9));
  return error < before * (1 - 1e-6);
}

inline KeptSet random_set(Index l, Index keep, std::mt19937_64& bits) {
  Vector<double> score(l);
  for (double& x : score) x = static_cast<double>(bits() >> 11);
  return largest(score, keep);
}

}  // namespace kvreplay::test
