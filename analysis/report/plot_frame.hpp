#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/report/svg.hpp"

#include <string>

namespace kvreplay::report {

/// The rectangle that a plot's values fill, pixels.
struct PlotFrame {
  double left = 62, top = 14, width = 380, height = 300;

  double x(double share) const { return left + width * share; }
  double y(double share) const { return top + height * (1 - share); }
};

/// Grid, ticks and label of one axis.
void draw_x_axis(Svg& svg, const PlotFrame& frame, const Axis& axis);
void draw_y_axis(Svg& svg, const PlotFrame& frame, const Axis& axis);
/// What the page's script needs to place and to read values.
std::string frame_json(const PlotFrame& frame);

}  // namespace kvreplay::report
