#pragma once

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/commands/arguments.hpp"

#include <CLI/CLI.hpp>

namespace kvreplay {

/// The options of `budget`; the struct must outlive the parsing.
void add_budget_options(CLI::App& app, BudgetOptions& options);

}  // namespace kvreplay
