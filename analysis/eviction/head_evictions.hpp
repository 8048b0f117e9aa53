#pragma once

#include "analysis/eviction/head_ranking.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/head_group.hpp"

#include <vector>

// Everything that `evict` finds out about one head group.

namespace kvreplay {

/// One case on one head group.
struct CaseFigures {
  KeptSet kept;      ///< [l], at the end where the phase decodes
  Index tokens = 0;  ///< kept; where the phase decodes, the size of the cache at its end
  double eviction_loss = 0, optimality_gap = 0, oracle_recall = 0;  ///< nan without decoding steps
  std::vector<double> step_change_sq;                               ///< [steps], where the phase decodes
  double bytes = 0;                                                 ///< of the cache
};

template <class T>
struct HeadEvictions {
  CaseOutputs<T> outputs;            ///< nan and no vectors where a case that decodes has no such rows
  std::vector<double> step_full_sq;  ///< [steps], where a case decodes
  std::vector<CaseFigures> cases;
};

/// `ranking` and `importance` are the group's (head_ranking.hpp); `given_kept` holds its part of the plan's
/// kept sets.
template <class T>
HeadEvictions<T> head_evictions(const HeadGroup<T>& group, const EvictionPlan& plan,
                                const HeadRanking& ranking, const Vector<double>& importance,
                                const std::vector<KeptSet>& given_kept, bool with_vectors,
                                const Compute& compute);

}  // namespace kvreplay
