#pragma once

#include "analysis/verify/check.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <set>
#include <string>
#include <vector>

namespace kvreplay {

/// Relative L2 error allowed between a replayed output and o.npy of this type: what rounding o, and the
/// model's own arithmetic in that type, explains.
double replay_tolerance(Dtype dtype);

/// The attention output of rows that are spread evenly, recomputed for every query head, against the one that
/// the model left in the dump.
class ReplayCheck {
 public:
  ReplayCheck(const Dump& dump, Workers& workers);

  /// Only where the dump has o.
  void add(const HeadGroup<double>& group);
  /// What was found of other heads, after these.
  void merge(const ReplayCheck& later);
  Check check() const;

 private:
  Dtype dtype_of_output(Index layer) const;

  const Dump& dump_;
  Workers& workers_;
  std::vector<Index> rows_;
  std::set<Dtype> dtypes_;
  Index heads_ = 0;
  double worst_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace kvreplay
