#pragma once

#include "analysis/eviction/head_ranking.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <vector>

// Everything that `evict` finds out about one head group.

namespace kvreplay {

/// One case on one head group.
struct CaseFigures {
  KeptSet kept;      ///< [l], at the end where the phase decodes
  Index tokens = 0;  ///< kept; where the phase decodes, the size of the cache at its end
  double window_change_sq = 0, future_change_sq = 0;  ///< sums of ||o^M - o||^2; nan where there are no rows
  double eviction_loss = 0, optimality_gap = 0, oracle_recall = 0;  ///< nan without decoding steps
  std::vector<double> step_change_sq;                               ///< [steps], where the phase decodes
  double bytes = 0;                                                 ///< of the cache
};

template <class T>
struct HeadEvictions {
  double window_full_sq = 0, future_full_sq = 0;  ///< sums of ||o||^2
  std::vector<double> step_full_sq;               ///< [steps], where a case decodes
  std::vector<CaseFigures> cases;
  /// Where asked for: outputs, and their change in every case, on window and future rows (kept_outputs.hpp).
  struct Vectors {
    PanelRows<T> full;
    std::vector<PanelRows<T>> change;  ///< empty for a case that has no such rows
  };
  Vectors window, future;
};

/// `ranking` and `importance` are the group's (head_ranking.hpp); `given_kept` holds its part of the plan's
/// kept sets; `backend` computes what it can.
template <class T>
HeadEvictions<T> head_evictions(const HeadGroup<T>& group, const EvictionPlan& plan,
                                const HeadRanking& ranking, const Vector<double>& importance,
                                const std::vector<KeptSet>& given_kept, bool with_vectors, Workers& workers,
                                const Backend& backend = cpu_backend());

}  // namespace kvreplay
