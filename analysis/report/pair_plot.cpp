#include "analysis/report/pair_plot.hpp"

#include "analysis/report/row_plot.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/compare.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kvreplay::report {
namespace {

constexpr double kLegend = 18;  // height

/// A ring, in which a dot of the same value still shows.
std::string side_a(double x, double y) {
  return fmt::format("<circle class=\"side-a\" cx=\"{}\" cy=\"{}\" r=\"5.5\"/>", px(x), px(y));
}
std::string side_b(double x, double y) { return fmt::format("<path class=\"side-b\" d=\"{}\"/>", dot(x, y)); }

void draw_legend(Svg& svg, const PlotFrame& frame) {
  const double y = frame.top - 10, a = frame.left + 8, b = a + 44;
  svg.raw(side_a(a, y) + side_b(b, y));
  svg.text(a + 11, y + 4, "start", "A");
  svg.text(b + 9, y + 4, "start", "B");
}

}  // namespace

std::string svg_of(const PairPlot& plot) {
  std::vector<std::string> names;
  for (const auto& row : plot.rows) names.push_back(row.name);
  PlotFrame frame = row_frame(names);
  frame.top += kLegend;
  Svg svg(plot.id, row_plot_width(frame), row_plot_height(frame), plot.title);
  draw_rows(svg, frame, plot.x, names);
  draw_legend(svg, frame);
  for (std::size_t i = 0; i < plot.rows.size(); ++i) {
    const auto& [name, a, b] = plot.rows[i];
    const double y = row_middle(frame, i), at_a = frame.x(plot.x.at(a)), at_b = frame.x(plot.x.at(b));
    if (!std::isnan(a) && !std::isnan(b)) svg.line(at_a, y, at_b, y, "link");
    if (!std::isnan(a)) svg.raw(side_a(at_a, y));
    if (!std::isnan(b)) svg.raw(side_b(at_b, y));
    draw_row_hover(
        svg, frame, i,
        fmt::format("{}\nA: {}\nB: {}\nB - A: {}", name, shown(a), shown(b), shown(difference(a, b))));
  }
  return svg.finish();
}

std::string csv_of(const PairPlot& plot) {
  std::string csv = "item,a,b,difference\n";
  for (const auto& [name, a, b] : plot.rows)
    csv +=
        fmt::format("{},{},{},{}\n", csv_field(name), shortest(a), shortest(b), shortest(difference(a, b)));
  return csv;
}

}  // namespace kvreplay::report
