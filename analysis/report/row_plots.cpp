#include "analysis/report/row_plots.hpp"

#include "analysis/report/plot_frame.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/compare.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

constexpr double kRowHeight = 19, kMargin = 6;
constexpr std::size_t kLongestName = 34;

/// A frame for items downwards, each with its name on the left, over one horizontal axis.
PlotFrame row_frame(const std::vector<std::string>& names) {
  PlotFrame frame;
  double widest = 0;
  for (const std::string& name : names) widest = std::max(widest, text_width(shortened(name, kLongestName)));
  frame.left = widest + 14;
  frame.height = kRowHeight * static_cast<double>(std::max<std::size_t>(names.size(), 1)) + 2 * kMargin;
  return frame;
}

/// The middle of a row of it, pixels.
double row_middle(const PlotFrame& frame, std::size_t row) {
  return frame.top + kMargin + kRowHeight * (static_cast<double>(row) + 0.5);
}

/// The size of a picture with only this frame.
double row_plot_width(const PlotFrame& frame) { return frame.left + frame.width + 24; }
double row_plot_height(const PlotFrame& frame) { return frame.top + frame.height + 44; }

/// The axis, the frame and the names.
void draw_rows(Svg& svg, const PlotFrame& frame, const Axis& x, const std::vector<std::string>& names) {
  draw_x_axis(svg, frame, x);
  svg.rect(frame.left, frame.top, frame.width, frame.height, "class=\"frame\"");
  for (std::size_t i = 0; i < names.size(); ++i)
    svg.text(frame.left - 8, row_middle(frame, i) + 4, "end", shortened(names[i], kLongestName));
}

/// An invisible rectangle over a row that says `hover`.
void draw_row_hover(Svg& svg, const PlotFrame& frame, std::size_t row, const std::string& hover) {
  svg.rect(0, row_middle(frame, row) - kRowHeight / 2, row_plot_width(frame), kRowHeight, "class=\"probe\"",
           hover);
}

/// A dot as part of a path with round ends: "M12 30h0".
std::string dot(double x, double y) { return fmt::format("M{} {}h0", px(x), px(y)); }

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
  const auto [least, most] = std::ranges::minmax_element(inner);
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

void order_rows(IntervalPlot& plot, Better better, std::string label, bool log) {
  std::ranges::stable_sort(plot.rows, [better](const auto& a, const auto& b) {
    return better == Better::larger ? a.mean > b.mean : a.mean < b.mean;
  });
  plot.x = interval_axis(std::move(label), plot.rows, log);
}

std::string svg_of(const IntervalPlot& plot) {
  std::vector<std::string> names;
  for (const auto& row : plot.rows) names.push_back(row.name);
  const PlotFrame frame = row_frame(names);
  Svg svg(plot.id, row_plot_width(frame), row_plot_height(frame), plot.title);
  draw_rows(svg, frame, plot.x, names);
  if (plot.line && plot.x.low <= *plot.line && plot.x.high >= *plot.line)
    svg.line(frame.x(plot.x.at(*plot.line)), frame.top, frame.x(plot.x.at(*plot.line)),
             frame.top + frame.height, "zero");
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
  std::vector<std::string> columns{"item", "n", "mean", "ci_low", "ci_high"};
  columns.insert(columns.end(), plot.samples.begin(), plot.samples.end());
  CsvTable csv(joined(columns));
  for (const auto& row : plot.rows) {
    csv.add(row.key.empty() ? row.name : row.key).add(row.n).add(row.mean).add(row.low).add(row.high);
    for (const double value : row.values) csv.add(value);
    csv.end_row();
  }
  return csv.take();
}

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
    const auto& [name, a, b, key] = plot.rows[i];
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
  CsvTable csv("item,a,b,difference");
  for (const auto& [name, a, b, key] : plot.rows) csv.row(key.empty() ? name : key, a, b, difference(a, b));
  return csv.take();
}

}  // namespace kvreplay::report
