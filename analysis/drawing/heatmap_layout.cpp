#include "analysis/drawing/heatmap_layout.hpp"

#include "analysis/drawing/text.hpp"
#include "analysis/drawing/ticks.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace kvreplay::png {
namespace {

constexpr Index kMargin = 24;
constexpr Index kPlotSide = 640;       // about
constexpr Index kLeastPlotSide = 192;  // room for a colour bar with its five numbers
constexpr Index kLabelGap = 15;        // between the numbers and the label of an axis
constexpr Index kTitleGap = 20;
constexpr Index kBarWidth = 22;
constexpr Index kCap = kCapHeight * kTextScale;
constexpr Index kLine = kLineAdvance * kTextScale;
constexpr Index kSwatch = kCap + 4;

Index width_of(const std::string& text) { return text_width(text, kTextScale); }

Index block_height(const std::vector<std::string>& lines) {
  return lines.empty() ? 0 : (std::ssize(lines) - 1) * kLine + kCap;
}

/// Square cells, stretched where the plot would be too flat or too narrow to read.
std::pair<Index, Index> cell_size(Index rows, Index columns) {
  const Index side = std::max<Index>(kPlotSide / std::max(rows, columns), 1);
  const auto stretched = [side](Index count) { return std::max(side, (kLeastPlotSide + count - 1) / count); };
  return {stretched(columns), stretched(rows)};
}

std::vector<BarTick> bar_ticks(const ColorRange& range) {
  if (range.limit == 0) return {{0.5, "0"}};
  const std::string end = short_number(range.limit), half = short_number(range.limit / 2);
  return {{0, (range.above ? ">= " : "") + end},
          {0.25, half},
          {0.5, "0"},
          {0.75, "-" + half},
          {1, (range.below ? "<= -" : "-") + end}};
}

}  // namespace

Rgb ColorRange::color(double value) const {
  return limit > 0 ? diverging_color(value / limit) : diverging_color(value);
}

ColorRange color_range(const Heatmap& heatmap) {
  ColorRange range{heatmap.limit};
  const auto values = heatmap.values.reshaped();
  if (range.limit == 0) {
    bool infinite = false;
    for (const double value : values) {
      if (std::isfinite(value)) range.limit = std::max(range.limit, std::abs(value));
      infinite = infinite || std::isinf(value);
    }
    if (infinite && range.limit == 0) range.limit = 1;  // so that the bar shows what an infinity's colour is
  }
  for (const double value : values) {
    range.above = range.above || value > range.limit;
    range.below = range.below || value < -range.limit;
    range.no_value = range.no_value || std::isnan(value);
  }
  return range;
}

Rect HeatmapLayout::cell(Index row, Index column) const {
  return {plot.x + column * cell_width, plot.y + row * cell_height, cell_width, cell_height};
}

HeatmapLayout layout_of(const Heatmap& heatmap, const ColorRange& range) {
  const Index rows = heatmap.values.rows(), columns = heatmap.values.cols();
  HeatmapLayout out;
  std::tie(out.cell_width, out.cell_height) = cell_size(rows, columns);
  out.plot.width = columns * out.cell_width;
  out.plot.height = rows * out.cell_height;
  const Index widest_row = width_of(std::to_string(rows - 1)),
              widest_column = width_of(std::to_string(columns - 1));
  out.x_ticks = tick_indices(columns, out.cell_width, std::max<Index>(widest_column + kTitleGap, 50));
  out.y_ticks = tick_indices(rows, out.cell_height, std::max<Index>(kCap + kTitleGap, 50));
  out.bar_ticks = bar_ticks(range);

  // Left to right.
  out.y_label = wrap(heatmap.y_label, out.plot.height, kTextScale);
  out.y_label_at.x = static_cast<double>(kMargin) + static_cast<double>(kCap) / 2;
  const Index y_label_width = out.y_label.empty() ? 0 : block_height(out.y_label) + kLabelGap;
  out.plot.x = kMargin + y_label_width + widest_row + kNumberGap + kTick + 1;
  out.bar = {out.plot.right() + kMargin, 0, kBarWidth, out.plot.height};
  Index widest_number = 0;
  for (const BarTick& tick : out.bar_ticks) widest_number = std::max(widest_number, width_of(tick.text));
  if (range.no_value) widest_number = std::max(widest_number, width_of("NaN"));
  const Index numbers_end = out.bar.right() + 1 + kTick + kNumberGap + widest_number;
  out.value_label = wrap(heatmap.value_label, out.plot.height, kTextScale);
  out.value_label_at.x = static_cast<double>(numbers_end + kLabelGap) + static_cast<double>(kCap) / 2;
  out.width = numbers_end + kMargin;
  if (!out.value_label.empty()) out.width += kLabelGap + block_height(out.value_label);

  // Top to bottom.
  out.title = wrap(heatmap.title, out.width - kMargin - out.plot.x, kTextScale);
  out.title_at = {static_cast<double>(out.plot.x),
                  static_cast<double>(kMargin) + static_cast<double>(kCap) / 2};
  out.plot.y = kMargin + (out.title.empty() ? 0 : block_height(out.title) + kTitleGap);
  out.bar.y = out.plot.y;
  if (range.no_value) {
    out.bar.height -= kSwatch + kTitleGap + kCap / 2;
    out.no_value = {out.bar.x, out.plot.bottom() - kSwatch, kBarWidth, kSwatch};
  }
  const Index numbers_bottom = out.plot.bottom() + 1 + kTick + kNumberGap + kCap;
  out.x_label = wrap(heatmap.x_label, out.plot.width, kTextScale);
  out.x_label_at.y = static_cast<double>(numbers_bottom + kLabelGap) + static_cast<double>(kCap) / 2;
  out.height = numbers_bottom + kMargin;
  if (!out.x_label.empty()) out.height += kLabelGap + block_height(out.x_label);

  out.x_label_at.x = static_cast<double>(out.plot.x) + static_cast<double>(out.plot.width) / 2;
  out.y_label_at.y = static_cast<double>(out.plot.y) + static_cast<double>(out.plot.height) / 2;
  out.value_label_at.y = out.y_label_at.y;
  return out;
}

}  // namespace kvreplay::png
