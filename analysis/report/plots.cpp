#include "analysis/report/plots.hpp"

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/report/plot_frame.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/compare.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvreplay::report {
namespace {

constexpr double kLabelHeight = 13;
constexpr int kColors = 8, kDashes = 6, kMarkers = 6;

/// One closed shape around the point, as the tail of a path.
std::string marker_path(int marker, double x, double y) {
  const auto at = [&](double dx, double dy) { return fmt::format("{} {}", px(x + dx), px(y + dy)); };
  switch (marker) {
    case 0:
      return fmt::format("M{}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", at(-3, 0));
    case 1:
      return fmt::format("M{}h5.4v5.4h-5.4z", at(-2.7, -2.7));
    case 2:
      return fmt::format("M{}L{}L{}z", at(0, -3.6), at(3.4, 2.6), at(-3.4, 2.6));
    case 3:
      return fmt::format("M{}L{}L{}L{}z", at(0, -3.8), at(3.8, 0), at(0, 3.8), at(-3.8, 0));
    case 4:
      return fmt::format("M{}L{}L{}z", at(0, 3.6), at(3.4, -2.6), at(-3.4, -2.6));
    default:
      return fmt::format("M{}h6.8v2h-6.8z", at(-3.4, -1));
  }
}

std::string path_of(const LinePlot& plot, const LinePlot::Line& line, const PlotFrame& frame) {
  std::string path;
  bool pen_down = false;
  for (std::size_t i = 0; i < plot.at.size(); ++i) {
    const double y = plot.y.at(line.values[i]);
    if (!std::isnan(y))
      path +=
          fmt::format("{}{} {}", pen_down ? 'L' : 'M', px(frame.x(plot.x.at(plot.at[i]))), px(frame.y(y)));
    pen_down = !std::isnan(y) || (plot.bridged && pen_down);
  }
  return path;
}

std::string line_class(const LineStyle& style) {
  return fmt::format("line c{} d{}{}", style.color, style.dash, style.thin ? " thin" : "");
}

struct Label {
  std::size_t line;
  double wanted, y;  // pixels
};

/// Labels at the lines' ends, moved apart where they would overlap.
std::vector<Label> placed_labels(const LinePlot& plot, const PlotFrame& frame) {
  std::vector<Label> labels;
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const auto& values = plot.lines[i].values;
    const auto last = std::find_if(values.rbegin(), values.rend(), [](double v) { return !std::isnan(v); });
    if (last != values.rend()) labels.push_back({i, frame.y(plot.y.at(*last)), 0});
  }
  if (plot.listed)
    for (std::size_t i = 0; i < labels.size(); ++i)
      labels[i].wanted = frame.top + 8 + kLabelHeight * static_cast<double>(i);
  std::ranges::stable_sort(labels, [](const Label& a, const Label& b) { return a.wanted < b.wanted; });
  double free = frame.top + 4;
  for (Label& label : labels) label.y = free = std::max(label.wanted, free), free += kLabelHeight;
  double limit = frame.top + frame.height;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label)
    label->y = std::min(label->y, limit), limit = label->y - kLabelHeight;
  return labels;
}

}  // namespace

std::vector<LineStyle> styles_by_name(const std::vector<std::string>& names) {
  std::vector<std::string> bases, scores;
  const auto index_in = [](std::vector<std::string>& list, const std::string& name) {
    return static_cast<int>(place_in(list, name));
  };
  std::vector<LineStyle> styles;
  for (const std::string& name : names) {
    const std::size_t plus = name.find('+');
    const int base = index_in(bases, name.substr(0, plus));
    const int score = plus == std::string::npos ? 0 : 1 + index_in(scores, name.substr(plus + 1));
    // A base beyond the last colour comes again with another dash and marker.
    styles.push_back(
        {base % kColors, (score + base / kColors) % kDashes, (base + base / kColors) % kMarkers});
  }
  return styles;
}

LinePlot styled(LinePlot plot, const std::vector<std::string>& names) {
  const std::vector<LineStyle> styles = styles_by_name(names);
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const bool thin = plot.lines[i].style.thin;
    plot.lines[i].style = styles[i];
    plot.lines[i].style.thin = thin;
  }
  return plot;
}

std::vector<std::pair<double, std::string>> by_number(const std::vector<std::string>& settings) {
  std::vector<std::pair<double, std::string>> sorted;
  for (const std::string& setting : settings)
    sorted.emplace_back(std::strtod(setting.c_str(), nullptr), setting);
  std::ranges::stable_sort(sorted, {}, &std::pair<double, std::string>::first);
  return sorted;
}

namespace {

/// The settings of a choice by the tokens that they keep.
std::vector<std::pair<double, std::string>> by_tokens_kept(const MetricTable& table, const Wanted& choice,
                                                           std::string_view setting, Index l) {
  std::vector<std::pair<double, std::string>> sorted;
  for (const std::string& one : table.distinct(setting, choice))
    if (const double kept = tokens_kept(one, table.find(with(choice, setting, one))->kept_text(), l);
        !std::isnan(kept))
      sorted.emplace_back(kept, one);
  std::ranges::stable_sort(sorted, {}, &std::pair<double, std::string>::first);
  return sorted;
}

/// Without lines where there is nothing to draw.
LinePlot plot_of(const MetricTable& table, const ModelPlots& wanted, const Wanted& choice,
                 const FigureFacts& figure, bool of_median_head) {
  LinePlot plot;
  const bool tokens = wanted.prompt > 0;
  const auto at = tokens ? by_tokens_kept(table, choice, wanted.setting, wanted.prompt)
                         : by_number(table.distinct(wanted.setting, choice));
  for (const auto& [x, value] : at) plot.at.push_back(x);
  const std::vector<std::string> items = table.distinct(wanted.item, choice);
  const std::vector<LineStyle> styles = styles_by_name(items);
  std::vector<double> all;
  for (std::size_t i = 0; i < items.size(); ++i) {
    LinePlot::Line line{shown_key(table.table(), wanted.item, items[i]), styles[i], {}, items[i]};
    for (const auto& [x, value] : at) {
      const auto* const entry = table.find(with(with(choice, wanted.item, items[i]), wanted.setting, value));
      line.values.push_back(entry == nullptr ? kNan : of_median_head ? median(entry->heads) : entry->model);
    }
    all.insert(all.end(), line.values.begin(), line.values.end());
    plot.lines.push_back(std::move(line));
  }
  const auto is_empty = [](const LinePlot::Line& line) { return std::isnan(largest(line.values)); };
  if (tokens || std::ranges::all_of(plot.lines, is_empty)) std::erase_if(plot.lines, is_empty);
  if (plot.lines.empty()) return plot;
  plot.x = linear_axis(wanted.x, plot.at, tokens);
  if (tokens) plot.x.high = plot.at.back();
  plot.y =
      figure_axis(fmt::format("{}{}", figure.name, of_median_head ? kMedianHead : ""), figure.scale, all);
  return plot;
}

}  // namespace

std::optional<Figure> model_figure(const MetricTable& table, const ModelPlots& wanted) {
  Variants variants(wanted.name);
  for (const FigureFacts* const facts : wanted.figures) {
    std::vector<Wanted> choices = table.choices(wanted.keys, {{"metric", facts->name}});
    if (wanted.window_first)
      std::stable_partition(choices.begin(), choices.end(), [](const Wanted& choice) {
        return is_in(choice, Wanted::value_type("rows", name_of(RowSet::window)));
      });
    for (const Wanted& choice : choices)
      for (const bool of_median_head : {false, true}) {
        if (of_median_head && !(wanted.median_heads && is_error_of_heads(*facts))) continue;
        LinePlot plot = plot_of(table, wanted, choice, *facts, of_median_head);
        if (plot.lines.empty()) continue;
        const std::string figure = fmt::format("{}{}", facts->name, of_median_head ? kMedianHead : "");
        std::vector<std::string> values = shown_keys(table.table(), std::span(choice).subspan(1));
        plot.title = wanted.title(figure, values);
        std::rotate(values.begin(), values.end() - static_cast<std::ptrdiff_t>(wanted.first_lists),
                    values.end());
        values.insert(values.begin(), figure);
        variants.add(std::move(values), std::move(plot));
      }
  }
  return variants.figure(wanted.labels, wanted.heading, wanted.reading, wanted.figures);
}

std::string svg_of(const LinePlot& plot) {
  PlotFrame frame;
  frame.height = std::max(frame.height, kLabelHeight * static_cast<double>(plot.lines.size()) + 10);
  double label_width = 0;
  for (const auto& line : plot.lines) label_width = std::max(label_width, text_width(line.name));
  Svg svg(plot.id, frame.left + frame.width + 44 + label_width, frame.top + frame.height + 44, plot.title);
  draw_x_axis(svg, frame, plot.x);
  svg.raw("<g data-axis=\"y\">");
  draw_y_axis(svg, frame, plot.y);
  svg.raw("</g>");
  svg.rect(frame.left, frame.top, frame.width, frame.height, "class=\"frame\"");
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const auto& line = plot.lines[i];
    svg.raw(fmt::format("<path class=\"{}\" data-line=\"{}\" d=\"{}\"/>", line_class(line.style), i,
                        path_of(plot, line, frame)));
    if (!line.markers) continue;
    std::string shapes;
    for (std::size_t j = 0; j < plot.at.size(); ++j)
      if (const double y = plot.y.at(line.values[j]); !std::isnan(y))
        shapes += marker_path(line.style.marker, frame.x(plot.x.at(plot.at[j])), frame.y(y));
    svg.raw(fmt::format("<path class=\"mark c{}\" data-line=\"{}\" d=\"{}\"/>", line.style.color, i, shapes));
  }
  const double end = frame.left + frame.width;
  for (const Label& label : placed_labels(plot, frame)) {
    const auto& line = plot.lines[label.line];
    if (!plot.listed && std::abs(label.y - label.wanted) > 1)
      svg.line(end + 1, label.wanted, end + 9, label.y, "leader");
    svg.raw(fmt::format("<path class=\"{}\" data-key=\"{}\" d=\"M{} {}h22\"/>", line_class(line.style),
                        label.line, px(end + 9), px(label.y)));
    if (line.markers)
      svg.raw(fmt::format("<path class=\"mark c{}\" data-key=\"{}\" d=\"{}\"/>", line.style.color, label.line,
                          marker_path(line.style.marker, end + 20, label.y)));
    svg.text(end + 35, label.y + 4, "start", line.name, "", fmt::format("data-key=\"{}\"", label.line));
  }
  const std::string lines = json_list(plot.lines, [](const LinePlot::Line& line) {
    return fmt::format(R"({{"name":{},"values":{}}})", json_string(line.name), json_numbers(line.values));
  });
  const std::string data =
      fmt::format(R"({{"frame":{},"x":{},"y":{},"at":{},"lines":{}}})", frame_json(frame), axis_json(plot.x),
                  axis_json(plot.y), json_numbers(plot.at), lines);
  svg.rect(frame.left, frame.top, frame.width, frame.height,
           fmt::format("class=\"probe\" data-plot='{}'", attribute_safe(data)));
  return svg.finish();
}

std::string csv_of(const LinePlot& plot) {
  CsvTable csv(fmt::format("{},line,{}", csv_field(plot.x.label), csv_field(plot.y.label)));
  for (const auto& line : plot.lines)
    for (std::size_t i = 0; i < plot.at.size(); ++i)
      csv.row(plot.at[i], line.key.empty() ? line.name : line.key, line.values[i]);
  return csv.take();
}

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
  CsvTable csv(fmt::format("token,{},{}", csv_field(plot.x.label), csv_field(plot.y.label)));
  for (std::size_t i = 0; i < plot.tokens.size(); ++i) csv.row(plot.tokens[i], plot.across[i], plot.up[i]);
  return csv.take();
}

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
