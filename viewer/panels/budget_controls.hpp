#pragma once

#include "viewer/work/budget_view.hpp"
#include "viewer/work/run.hpp"

namespace kvreplay::viewer {

/// Controls of order, normalisation, semantics, pins and total, in a row that wraps. The run must have its
/// dump.
void edit_budgets(const Run& run, BudgetSettings& settings);

}  // namespace kvreplay::viewer
