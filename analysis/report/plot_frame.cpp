#include "analysis/report/plot_frame.hpp"

#include "analysis/report/text.hpp"

#include <fmt/format.h>

namespace kvreplay::report {

void draw_x_axis(Svg& svg, const PlotFrame& frame, const Axis& axis) {
  const double bottom = frame.top + frame.height;
  for (const AxisTick& tick : axis.ticks()) {
    svg.line(frame.x(tick.at), frame.top, frame.x(tick.at), bottom, "grid");
    svg.text(frame.x(tick.at), bottom + 16, "middle", tick.text);
  }
  svg.text(frame.left + frame.width / 2, bottom + 34, "middle", axis.label, "label");
}

void draw_y_axis(Svg& svg, const PlotFrame& frame, const Axis& axis) {
  for (const AxisTick& tick : axis.ticks()) {
    svg.line(frame.left, frame.y(tick.at), frame.left + frame.width, frame.y(tick.at), "grid");
    svg.text(frame.left - 6, frame.y(tick.at) + 4, "end", tick.text);
  }
  const double middle = frame.top + frame.height / 2;
  svg.text(13, middle, "middle", axis.label, "label",
           fmt::format("transform=\"rotate(-90 13 {})\"", px(middle)));
}

std::string frame_json(const PlotFrame& frame) {
  return fmt::format(R"({{"left":{},"top":{},"width":{},"height":{}}})", px(frame.left), px(frame.top),
                     px(frame.width), px(frame.height));
}

}  // namespace kvreplay::report
