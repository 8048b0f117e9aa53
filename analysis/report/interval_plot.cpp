#include "analysis/report/interval_plot.hpp"

#include "analysis/report/row_plot.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

constexpr std::size_t kMostDots = 200, kMostNamed = 12;
constexpr double kCap = 3.5;
constexpr double kBelow = 4.5;  // of the dots under their bar: behind it few of them would show

std::string hover_of(const IntervalPlot& plot, const IntervalPlot::Row& row) {
  std::string text = fmt::format("{}: {}", row.name, shown(row.mean));
  if (!std::isnan(row.low)) text += fmt::format(", 95 % from {} to {}", shown(row.low), shown(row.high));
  text += fmt::format(", n {}", row.n);
  const std::size_t named = plot.samples.size() > kMostNamed + 1 ? kMostNamed : plot.samples.size();
  for (std::size_t i = 0; i < named; ++i)
    text += fmt::format("\n{}: {}", plot.samples[i], shown(row.values[i]));
  if (named < plot.samples.size()) text += fmt::format("\nand {} more", plot.samples.size() - named);
  return text;
}

/// A bar with a cap at each end, or an arrow where the axis ends before it.
std::string interval_path(const IntervalPlot::Row& row, const Axis& axis, const PlotFrame& frame, double y) {
  const double left = frame.x(axis.at(row.low)), right = frame.x(axis.at(row.high));
  const auto end = [&](double x, bool cut, double inwards) {
    return cut ? fmt::format("M{} {}L{} {}L{} {}", px(x + inwards), px(y - kCap), px(x), px(y),
                             px(x + inwards), px(y + kCap))
               : fmt::format("M{} {}v{}", px(x), px(y - kCap), px(2 * kCap));
  };
  return fmt::format("M{} {}H{}", px(left), px(y), px(right)) + end(left, row.low < axis.low, 5) +
         end(right, row.high > axis.high, -5);
}

}  // namespace

Axis interval_axis(std::string label, const std::vector<IntervalPlot::Row>& rows, bool log) {
  std::vector<double> inner;
  for (const auto& row : rows) {
    inner.push_back(row.mean);
    inner.insert(inner.end(), row.values.begin(), row.values.end());
  }
  std::erase_if(inner, [&](double value) { return !std::isfinite(value) || (log && value <= 0); });
  if (inner.empty()) return log ? log_axis(std::move(label), {}) : linear_axis(std::move(label), {}, false);
  const auto scaled = [&](double value) { return log ? std::log(value) : value; };
  const auto [least, most] = std::minmax_element(inner.begin(), inner.end());
  const double low = scaled(*least), high = scaled(*most), beyond = (high - low) / 2;
  std::vector<double> all = inner;
  for (const auto& row : rows) {
    const auto add = [&](double value) { all.push_back(log ? std::exp(value) : value); };
    if (!std::isnan(row.low))
      add(log && row.low <= 0 ? low - beyond : std::max(scaled(row.low), low - beyond));
    if (!std::isnan(row.high) && (!log || row.high > 0)) add(std::min(scaled(row.high), high + beyond));
  }
  return log ? log_axis(std::move(label), all) : linear_axis(std::move(label), all, false);
}

std::string svg_of(const IntervalPlot& plot) {
  std::vector<std::string> names;
  for (const auto& row : plot.rows) names.push_back(row.name);
  const PlotFrame frame = row_frame(names);
  Svg svg(plot.id, row_plot_width(frame), row_plot_height(frame), plot.title);
  draw_rows(svg, frame, plot.x, names);
  if (plot.zero_line && plot.x.low <= 0 && plot.x.high >= 0)
    svg.line(frame.x(plot.x.at(0)), frame.top, frame.x(plot.x.at(0)), frame.top + frame.height, "zero");
  for (std::size_t i = 0; i < plot.rows.size(); ++i) {
    const auto& row = plot.rows[i];
    const double y = row_middle(frame, i) - kBelow / 2;
    const std::size_t samples = row.values.size(), step = (samples + kMostDots - 1) / kMostDots;
    std::string dots;
    for (std::size_t s = 0; s < samples; s += step)
      if (!std::isnan(row.values[s])) dots += dot(frame.x(plot.x.at(row.values[s])), y + kBelow);
    if (!dots.empty()) svg.raw(fmt::format("<path class=\"dots c{}\" d=\"{}\"/>", row.style.color, dots));
    if (!std::isnan(row.low) && !std::isnan(row.high))
      svg.raw(fmt::format("<path class=\"interval c{}\" d=\"{}\"/>", row.style.color,
                          interval_path(row, plot.x, frame, y)));
    if (!std::isnan(row.mean))
      svg.raw(fmt::format("<path class=\"mean c{}\" d=\"{}\"/>", row.style.color,
                          dot(frame.x(plot.x.at(row.mean)), y)));
    draw_row_hover(svg, frame, i, hover_of(plot, row));
  }
  return svg.finish();
}

std::string csv_of(const IntervalPlot& plot) {
  std::string csv = "item,n,mean,ci_low,ci_high";
  for (const std::string& sample : plot.samples) csv += fmt::format(",{}", csv_field(sample));
  csv += '\n';
  for (const auto& row : plot.rows) {
    csv += fmt::format("{},{},{},{},{}", csv_field(row.name), row.n, shortest(row.mean), shortest(row.low),
                       shortest(row.high));
    for (const double value : row.values) csv += fmt::format(",{}", shortest(value));
    csv += '\n';
  }
  return csv;
}

}  // namespace kvreplay::report
