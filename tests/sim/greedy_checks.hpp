#pragma once

#include "sim/eviction/exact/exact_error.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "tests/sim/greedy_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvreplay::test {

/// The errors of a path are those of its kept sets, and every token that it evicts was the best to evict. The
/// second is looked at in every `stride`th step.
inline void check_path(const GreedyPath& path, const HeadGroup<double>& group, RowRange rows,
                       std::size_t stride = 1, const RowGradients<double>* gradients = nullptr) {
  constexpr double kRelative = 1e-9;
  const SetErrorJudge judge(group, rows, gradients);
  KeptSet kept(static_cast<std::size_t>(group.l), 1);
  REQUIRE(path.error.size() == path.evicted.size());
  for (std::size_t n = 0; n < path.evicted.size(); ++n) {
    std::uint8_t& evicted = kept.at(path.evicted[n]);
    REQUIRE(evicted == 1);
    double best = std::numeric_limits<double>::infinity();
    for (Index p = group.first_held(); p < group.l; ++p) {
      std::uint8_t& candidate = kept[static_cast<std::size_t>(p)];
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
inline double best_neighbour(const SetErrorJudge& judge, KeptSet kept, std::size_t begin) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t p = begin; p < kept.size(); ++p)
    for (std::size_t q = begin; q < kept.size(); ++q) {
      if (kept[p] != 0 || kept[q] == 0) continue;
      std::swap(kept[p], kept[q]);
      best = std::min(best, judge.error(kept));
      std::swap(kept[p], kept[q]);
    }
  return best;
}

/// What a search made of a start is no worse, and no swap makes it better. True where it is better.
inline bool check_exchange(const HeadGroup<double>& group, RowRange rows, const KeptSet& start,
                           const KeptSet& kept, const RowGradients<double>* gradients = nullptr) {
  const SetErrorJudge judge(group, rows, gradients);
  REQUIRE(kept.size() == start.size());
  REQUIRE(count(kept) == count(start));
  const double before = judge.error(start), error = judge.error(kept);
  CHECK(error <= before + judge.slack(before, 1e-12));
  CHECK(best_neighbour(judge, kept, static_cast<std::size_t>(group.first_held())) >=
        error - judge.slack(error, 2e-9));
  return error < before * (1 - 1e-6);
}

inline KeptSet random_set(const HeadGroup<double>& group, Index keep, std::mt19937_64& bits) {
  Vector<double> score(group.l);
  for (double& x : score) x = static_cast<double>(bits() >> 11);
  return largest(score, keep, group.first_held());
}

/// A path's kept set of `keep` candidates, or of all candidates if there are fewer.
inline KeptSet left_by(const GreedyPath& path, const HeadGroup<double>& group, Index keep) {
  return kept_by(path, group.l, std::min(keep, group.held()), group.first_held());
}

/// 0..l-1 in some order.
inline std::vector<Index> shuffled(Index l, std::mt19937_64& bits) {
  std::vector<Index> order(l);
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<Index>(i);
    std::swap(order[i], order[bits() % (i + 1)]);
  }
  return order;
}

/// E(M), and E of every set one token away, against the judge.
inline void check_neighbours(ExactError& state, const SetErrorJudge& judge, KeptSet kept) {
  constexpr double kRelative = 1e-9;
  const double error = judge.error(kept);
  REQUIRE(state.kept() == count(kept));
  CHECK(std::abs(state.error() - error) <= judge.slack(error, kRelative));
  double least = std::numeric_limits<double>::infinity();
  const auto columns = static_cast<Index>(kept.size() - judge.begin());
  for (Index column = 0; column < columns; ++column) {
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

/// The best removal with p in M, against the judge.
template <class State>
void check_removal_with(State& state, const SetErrorJudge& judge, KeptSet kept, Index p) {
  const double before = judge.error(kept);
  kept[p] = 1;
  double least = std::numeric_limits<double>::infinity(), size = std::max(before, judge.error(kept));
  for (Index q = 0; q < std::ssize(kept); ++q) {
    std::uint8_t& token = kept[q];
    if (q == p || token == 0) continue;
    token = 0;
    least = std::min(least, judge.error(kept));
    token = 1;
  }
  const BestRemoval best = state.best_removal_with(p);
  INFO("with position " << p << ": without " << best.position << " " << best.error << ", best " << least);
  REQUIRE(best.position != p);
  REQUIRE(kept.at(best.position) == 1);
  CHECK(std::abs(best.error - least) <= judge.slack(std::max(least, size), 1e-9));
}

/// All tokens leave a state that has them all, and return; check_state(state, judge, kept) after each.
template <class State, class CheckState>
void check_leave_and_return(State& state, const SetErrorJudge& judge, const HeadGroup<double>& group,
                            std::mt19937_64& bits, CheckState check_state) {
  const Index begin = group.first_held();
  KeptSet kept = all_from(begin, group.l);
  check_state(state, judge, kept);
  for (Index p : shuffled(group.held(), bits)) {
    p += begin;
    INFO("removed " << p);
    state.remove(p);
    kept[p] = 0;
    check_state(state, judge, kept);
  }
  for (Index p : shuffled(group.held(), bits)) {
    p += begin;
    INFO("inserted " << p);
    if (count(kept) > 0) check_removal_with(state, judge, kept, p);
    state.insert(p);
    kept[p] = 1;
    check_state(state, judge, kept);
  }
}

}  // namespace kvreplay::test
