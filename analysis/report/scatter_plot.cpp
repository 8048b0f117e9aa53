#include "analysis/report/scatter_plot.hpp"

#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kvreplay::report {

PlotFrame scatter_frame() { return {62, 14, 400, 400}; }

std::string svg_of(const ScatterPlot& plot) {
  const PlotFrame frame = scatter_frame();
  Svg svg(plot.id, frame.left + frame.width + 20, frame.top + frame.height + 44, plot.title);
  svg.raw("<g data-axis=\"x\">");
  draw_x_axis(svg, frame, plot.x);
  svg.raw("</g><g data-axis=\"y\">");
  draw_y_axis(svg, frame, plot.y);
  svg.raw("</g>");
  svg.rect(frame.left, frame.top, frame.width, frame.height, "class=\"frame\"");
  std::string path;
  for (std::size_t i = 0; i < plot.tokens.size(); ++i) {
    const double x = plot.x.at(plot.across[i]), y = plot.y.at(plot.up[i]);
    if (!std::isnan(x) && !std::isnan(y)) path += fmt::format("M{} {}h0", px(frame.x(x)), px(frame.y(y)));
  }
  svg.raw(fmt::format("<path class=\"points\" data-points=\"\" d=\"{}\"/>", path));
  svg.raw("<circle class=\"ring\" r=\"5\" cx=\"-9\" cy=\"-9\"/>");
  svg.text(frame.left + 10, frame.top + 20, "start", plot.corner, "corner", "data-corner=\"\"");
  svg.rect(frame.left, frame.top, frame.width, frame.height, "class=\"probe\"");
  return svg.finish();
}

std::string csv_of(const ScatterPlot& plot) {
  std::string csv = fmt::format("token,{},{}\n", csv_field(plot.x.label), csv_field(plot.y.label));
  for (std::size_t i = 0; i < plot.tokens.size(); ++i)
    csv += fmt::format("{},{},{}\n", csv_number(plot.tokens[i]), csv_number(plot.across[i]),
                       csv_number(plot.up[i]));
  return csv;
}

}  // namespace kvreplay::report
