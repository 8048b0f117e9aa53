#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/results/over_dumps_reader.hpp"
#include "analysis/results/tables.hpp"

#include <optional>

namespace kvreplay::report {

/// What every head keeps at every compression (LU-KV, fig. 2b and 7 to 9): a line a division of the budget.
/// Nothing where the folder has no profile of `lu`.
std::optional<Figure> allocation_figure(const Tables& tables);
/// The `lu` of every dump, their mean, which is the profile, and the mean of the exact optima.
std::optional<Figure> allocation_figure(const OverDumpsReader& results);

}  // namespace kvreplay::report
