#pragma once

#include "analysis/eviction/compensation_plan.hpp"
#include "sim/compensation/compensate.hpp"
#include "sim/compensation/error_split.hpp"

#include <optional>
#include <span>
#include <vector>

namespace kvreplay {

/// What a method makes of one kept set of a head.
struct CompensatedHead {
  Compensated held;
  /// Where its error comes from; empty where there are no such rows, or where keys are others than the
  /// tokens'.
  std::optional<ErrorSplit> window, future, reference;
};

/// One head group under a plan: rows and weights that all kept sets and methods look at, computed once.
template <class T>
class HeadCompensation {
 public:
  /// The group must outlive this.
  HeadCompensation(const HeadGroup<T>& group, const CompensationPlan& plan, Workers& workers);

  /// Sum over the reference rows of ||o||^2; nan where nothing is fitted.
  double reference_full_sq() const;
  /// Cases of one kept set, which share its fits. From any thread.
  std::vector<CompensatedHead> of(const KeptSet& kept, std::span<const CompensationCase> cases,
                                  Semantics semantics, Workers& workers) const;
  /// Of memory, without the group.
  std::size_t bytes() const;

 private:
  const HeadGroup<T>& group_;
  std::optional<ReferenceRows<T>> reference_;
  std::optional<RowLogits<T>> window_, future_;
  std::optional<HeadGroup<double>> wide_;  // for what merges
  WindowAttention attention_;
};

}  // namespace kvreplay
