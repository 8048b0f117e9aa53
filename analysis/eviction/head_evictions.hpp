#pragma once

#include "analysis/eviction/eviction_columns.hpp"
#include "analysis/eviction/head_ranking.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/head_group.hpp"

#include <array>
#include <vector>

// Everything that `evict` finds out about one head group.

namespace kvreplay {

/// One case on one head group.
struct CaseFigures {
  using Column = EvictionColumns::Case;

  KeptSet kept;  ///< [l], at the end where the phase decodes
  /// By column, but for those of outputs; nan without the decoding steps that a figure needs.
  std::array<double, EvictionColumns::kCaseFigures> figures{};
  std::vector<double> step_change_sq;   ///< [steps], where the phase decodes
  std::vector<std::int32_t> last_rows;  ///< [T], where the phase decodes
  ChannelSet pruned;                    ///< [d], where channels are

  double& operator[](Column column) { return figures[column]; }
  double operator[](Column column) const { return figures[column]; }
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
