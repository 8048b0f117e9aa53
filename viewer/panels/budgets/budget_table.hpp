#pragma once

#include "viewer/panels/budgets/budget_figures.hpp"

#include <string>
#include <vector>

namespace kvreplay::viewer {

/// "waits for 3 more heads"; empty where none is missing.
std::string progress_of(const BudgetFigures& figures);

/// A row a method with its loss, what the selected head keeps and the budgets' ends; a click sets `chosen`.
void draw_budget_table(const BudgetFigures& figures, const std::vector<std::string>& methods, Index selected,
                       std::string& chosen);

}  // namespace kvreplay::viewer
