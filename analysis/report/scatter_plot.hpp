#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/report/plot_frame.hpp"

#include <string>
#include <vector>

namespace kvreplay::report {

/// One point a token.
struct ScatterPlot {
  std::string id, title;
  Axis x, y;
  std::vector<double> tokens;  ///< the position that each point is of
  std::vector<double> across, up;
  std::string corner;  ///< text in the upper left corner
};

/// Square: both axes carry the same tokens.
PlotFrame scatter_frame();
std::string svg_of(const ScatterPlot& plot);
/// token, x, y.
std::string csv_of(const ScatterPlot& plot);

}  // namespace kvreplay::report
