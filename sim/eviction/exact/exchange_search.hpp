#pragma once

#include "sim/eviction/exact/exact_error.hpp"

#include <algorithm>

namespace kvreplay {

inline void check_stop(const Workers& workers) {
  if (workers.stopping()) throw Interrupted{};
}

/// exchange() of sim/eviction/exact/greedy.hpp from the set `kept` that `state` has. State: ExactError or its
/// twin on a device.
template <class State>
KeptSet exchange_from(State& state, KeptSet kept, const Workers& workers) {
  constexpr double kWorthwhile = 1e-9;  // swaps that pay less than this part of the error: rounding decides
  constexpr int kSwapsPerSum = 128;     // between two sums of everything anew
  int swaps = 0;
  for (bool improved = true; improved;) {
    improved = false;
    if (swaps > 0) state.sum_again();
    // The one whose return takes away the most error first.
    std::vector<Insertion> evicted = state.insertions();
    std::sort(evicted.begin(), evicted.end(), [](const Insertion& a, const Insertion& b) {
      if (a.change != b.change) return a.change < b.change;
      return a.position < b.position;
    });
    for (const Insertion& in : evicted) {
      check_stop(workers);
      const double error = state.error(), paying = error - kWorthwhile * error;
      const BestRemoval drop = state.best_removal_with(in.position);
      if (!(drop.error < paying)) continue;
      state.insert(in.position);
      state.remove(drop.position);
      if (!(state.error() < paying)) {  // the promise was rounding
        state.insert(drop.position);
        state.remove(in.position);
        continue;
      }
      kept[in.position] = 1;
      kept[drop.position] = 0;
      improved = true;
      if (++swaps % kSwapsPerSum == 0) state.sum_again();
    }
  }
  return kept;
}

}  // namespace kvreplay
