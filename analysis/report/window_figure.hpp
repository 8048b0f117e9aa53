#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/report/figure_table.hpp"

#include <optional>

namespace kvreplay::report {

/// How much of the costliest tokens scores find on every window, with and without reserved tokens; nothing of
/// results on one window.
std::optional<Figure> window_figure(const FigureTable& agreement);

}  // namespace kvreplay::report
