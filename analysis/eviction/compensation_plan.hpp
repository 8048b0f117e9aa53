#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "sim/least_squares/reference_rows.hpp"

#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// A kept set, and what makes up for what it lacks.
struct CompensationCase {
  std::size_t eviction = 0;  ///< its number in EvictionPlan::cases
  Compensation method = Compensation::none;
};

/// What is asked for beside the evictions of a plan; without cases nothing is.
struct CompensationPlan {
  std::vector<CompensationCase> cases;  ///< those of an eviction adjacent
  std::vector<std::size_t> first;       ///< of each eviction's
  ReferenceOptions reference;
  RowRange window, future;  ///< those of the evictions
  LossRows losses;
  CacheElements elements;
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;

  /// Cases of the nth kept set that has any: from first[n] on.
  std::span<const CompensationCase> cases_of_kept_set(std::size_t n) const {
    const std::size_t end = n + 1 < first.size() ? first[n + 1] : cases.size();
    return std::span(cases).subspan(first[n], end - first[n]);
  }
  bool fits() const;
  bool merges() const;
};

/// Kept sets beyond this many tokens are not fitted: a fit solves for all of them at once.
inline constexpr Index kMostFitted = 4096;

/// Throws OptionError for reference rows that the dump does not have, and together with what has no
/// compensation: phases that decode, caches of query heads, pruned channels, quantization.
CompensationPlan compensation_plan(const Dump& dump, const EvictionOptions& options,
                                   const EvictionPlan& evictions);

/// "snapkv-paper-prefill-410-fit": the name of a case's files.
std::string file_name(const EvictionPlan& evictions, const CompensationCase& which);

}  // namespace kvreplay
