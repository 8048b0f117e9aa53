#pragma once

#include "analysis/eviction/compensated_cases.hpp"
#include "analysis/results/figure_facts.hpp"
#include "viewer/work/what_if.hpp"

#include <cstddef>
#include <memory>
#include <optional>

// What makes up for evicted tokens (sim/compensation/COMPENSATION.md), in two steps: rows that are looked at
// (what_if_rows), which serve every kept set; and what is made of one (what_if_compensated).

namespace kvreplay::viewer {

/// `evictions` is the plan of the same settings and score. Without cases where they leave kept tokens as they
/// were. Throws InputError, one line, where the dump cannot follow.
CompensationPlan what_if_compensation(const WhatIfSettings& settings, const Dump& dump,
                                      const EvictionPlan& evictions, const UserScore* score = nullptr);

/// What rows depend on besides the head; never the kept set, nor which of several methods that fit it is.
Key rows_key(const CompensationPlan& plan);
/// About the bytes of one head's.
std::size_t rows_bytes(const CompensationPlan& plan, const DumpShape& shape);

struct WhatIfRows {
  std::shared_ptr<const HeadGroup<float>> group;
  HeadCompensation<float> of_head;  ///< looks at the group
};
WhatIfRows what_if_rows(std::shared_ptr<const HeadGroup<float>> group, const CompensationPlan& plan,
                        JobControl& job);

/// `rows` are the head's under the same rows_key(), `plain` what the settings keep of it.
WhatIf what_if_compensated(const EvictionPlan& evictions, const CompensationPlan& plan,
                           const WhatIfRows& rows, const WhatIf& plain, JobControl& job);

std::size_t bytes_of(const WhatIfRows& rows);

/// A sum of the split, relative to the outputs as output_error is, on window, future or reference rows; nan
/// where there are none or the method has no terms.
double split_figure(const WhatIf& what_if, RowSet rows, double ErrorSplit::*sum);

/// The error of a compensated cache as it comes about, relative to the outputs as output_error is; each step
/// includes those before.
struct ErrorSteps {
  double selection = 0;  ///< what is kept, as it was, with the whole prompt's mass
  double weighted = 0;   ///< with the mass and the biases that it has
  double error = 0;      ///< with the values that it has: output_error
  double bound = 0;      ///< the least that any values could reach; nan where rows do not outnumber tokens
  double plain = 0;      ///< output_error of the kept tokens as they were
};
/// On window, future or reference rows; empty where there are none or the method has no terms.
std::optional<ErrorSteps> error_steps(const WhatIf& what_if, RowSet rows);

}  // namespace kvreplay::viewer
