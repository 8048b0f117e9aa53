#pragma once

#include "analysis/report/plot_frame.hpp"

#include <string>
#include <vector>

namespace kvreplay::report {

/// A frame for items downwards, each with its name on the left, over one horizontal axis.
PlotFrame row_frame(const std::vector<std::string>& names);
/// The middle of a row of it, pixels.
double row_middle(const PlotFrame& frame, std::size_t row);
/// The size of a picture with only this frame.
double row_plot_width(const PlotFrame& frame);
double row_plot_height(const PlotFrame& frame);

/// The axis, the frame and the names.
void draw_rows(Svg& svg, const PlotFrame& frame, const Axis& x, const std::vector<std::string>& names);
/// An invisible rectangle over a row that says `hover`.
void draw_row_hover(Svg& svg, const PlotFrame& frame, std::size_t row, const std::string& hover);
/// A dot as part of a path with round ends: "M12 30h0".
std::string dot(double x, double y);

}  // namespace kvreplay::report
