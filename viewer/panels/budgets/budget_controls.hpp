#pragma once

#include "viewer/panels/budgets/budget_result_source.hpp"
#include "viewer/work/budget_view.hpp"
#include "viewer/work/policy_settings.hpp"
#include "viewer/work/run.hpp"

#include <string>

namespace kvreplay::viewer {

/// Controls of order, normalisation, semantics, pins and total (where linked, the desk's as a share), in a
/// row that wraps. The run must have its dump.
void edit_budgets(const Run& run, KeptBudget& desk, BudgetSettings& settings);

/// Controls of a result folder's order and total, of those that it has.
void choose_budgets(const Run& run, const BudgetResultSource& source, std::string& order, std::string& sigma);

}  // namespace kvreplay::viewer
