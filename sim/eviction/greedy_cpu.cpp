#include "sim/eviction/exact_error.hpp"
#include "sim/eviction/greedy.hpp"

#include <algorithm>
#include <numeric>

namespace kvreplay {
namespace {

/// Swaps that pay less than this part of the error are left: below it rounding decides.
constexpr double kWorthwhile = 1e-9;
/// Swaps between two sums of everything anew.
constexpr int kSwapsPerSum = 128;

void check_stop(const Workers& workers) {
  if (workers.stopping()) throw Interrupted{};
}

/// The evicted positions, the one whose return takes away the most error first.
std::vector<Index> evicted_by_benefit(const ExactError& state, Index l) {
  std::vector<Index> columns(static_cast<std::size_t>(l - state.kept()));
  std::iota(columns.begin(), columns.end(), state.kept());
  std::sort(columns.begin(), columns.end(), [&](Index a, Index b) {
    if (state.change(a) != state.change(b)) return state.change(a) < state.change(b);
    return state.position(a) < state.position(b);
  });
  for (Index& column : columns) column = state.position(column);
  return columns;
}

}  // namespace

KeptSet kept_by(const GreedyPath& path, Index l, Index keep) {
  KeptSet kept(static_cast<std::size_t>(l), 1);
  for (Index n = 0; n < l - keep; ++n)
    kept.at(static_cast<std::size_t>(path.evicted.at(static_cast<std::size_t>(n)))) = 0;
  return kept;
}

GreedyPath greedy_exact(const HeadGroup<double>& group, Rows rows, Index keep, Workers& workers) {
  ExactError state(group, rows, KeptSet(static_cast<std::size_t>(group.l), 1), false, workers);
  GreedyPath path;
  while (state.kept() > keep) {
    check_stop(workers);
    path.evicted.push_back(state.best_removal().position);
    state.remove(path.evicted.back());
    path.error.push_back(state.error());
  }
  return path;
}

KeptSet exchange(const HeadGroup<double>& group, Rows rows, KeptSet kept, Workers& workers) {
  const Index keep = count(kept);
  if (keep == 0 || keep == group.l) return kept;
  ExactError state(group, rows, kept, true, workers);
  int swaps = 0;
  for (bool improved = true; improved;) {
    improved = false;
    if (swaps > 0) state.sum_again();
    for (const Index p : evicted_by_benefit(state, group.l)) {
      check_stop(workers);
      const double error = state.error(), paying = error - kWorthwhile * error;
      const ExactError::Removal drop = state.best_removal_with(p);
      if (!(drop.error < paying)) continue;
      state.insert(p);
      state.remove(drop.position);
      if (!(state.error() < paying)) {  // the promise was rounding
        state.insert(drop.position);
        state.remove(p);
        continue;
      }
      std::swap(kept[static_cast<std::size_t>(p)], kept[static_cast<std::size_t>(drop.position)]);
      improved = true;
      if (++swaps % kSwapsPerSum == 0) state.sum_again();
    }
  }
  return kept;
}

}  // namespace kvreplay
