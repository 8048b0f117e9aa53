#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/results/over_dumps_reader.hpp"

namespace kvreplay::report {

/// The main figures of every analysis; of those that the folder does not hold, what would make them.
Section figures_over_dumps(const OverDumpsReader& results);
/// In how many dumps each claim holds.
Section claims_over_dumps(const OverDumpsReader& results);

}  // namespace kvreplay::report
