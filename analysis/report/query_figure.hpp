#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/results/result_reader.hpp"

#include <optional>

namespace kvreplay::report {

/// Mean and spread of every channel of the queries, over the window and over the decoding steps (IAP, fig.
/// 2). Nothing where the folder does not have both.
std::optional<Figure> query_figure(const ResultReader& results);

}  // namespace kvreplay::report
