#include "analysis/report/row_plot.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::report {
namespace {

constexpr double kRowHeight = 19, kMargin = 6;
constexpr std::size_t kLongestName = 34;

}  // namespace

PlotFrame row_frame(const std::vector<std::string>& names) {
  PlotFrame frame;
  double widest = 0;
  for (const std::string& name : names) widest = std::max(widest, text_width(shortened(name, kLongestName)));
  frame.left = widest + 14;
  frame.height = kRowHeight * static_cast<double>(std::max<std::size_t>(names.size(), 1)) + 2 * kMargin;
  return frame;
}

double row_middle(const PlotFrame& frame, std::size_t row) {
  return frame.top + kMargin + kRowHeight * (static_cast<double>(row) + 0.5);
}

double row_plot_width(const PlotFrame& frame) { return frame.left + frame.width + 24; }
double row_plot_height(const PlotFrame& frame) { return frame.top + frame.height + 44; }

void draw_rows(Svg& svg, const PlotFrame& frame, const Axis& x, const std::vector<std::string>& names) {
  draw_x_axis(svg, frame, x);
  svg.rect(frame.left, frame.top, frame.width, frame.height, "class=\"frame\"");
  for (std::size_t i = 0; i < names.size(); ++i)
    svg.text(frame.left - 8, row_middle(frame, i) + 4, "end", shortened(names[i], kLongestName));
}

void draw_row_hover(Svg& svg, const PlotFrame& frame, std::size_t row, const std::string& hover) {
  svg.rect(0, row_middle(frame, row) - kRowHeight / 2, row_plot_width(frame), kRowHeight, "class=\"probe\"",
           hover);
}

std::string dot(double x, double y) { return fmt::format("M{} {}h0", px(x), px(y)); }

}  // namespace kvreplay::report
