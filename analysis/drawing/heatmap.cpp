#include "analysis/drawing/heatmap.hpp"

#include "analysis/drawing/canvas.hpp"
#include "analysis/drawing/heatmap_layout.hpp"
#include "analysis/drawing/text.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

namespace kvreplay {
namespace png {
namespace {

constexpr Index kMostCells = 8192;  // per side: 200 MB of pixels

void check(const std::filesystem::path& path, const Heatmap& heatmap) {
  const Index rows = heatmap.values.rows(), columns = heatmap.values.cols();
  if (rows < 1 || columns < 1 || rows > kMostCells || columns > kMostCells)
    throw InputError(path.string(), fmt::format("a heatmap of 1 to {} rows and columns", kMostCells),
                     fmt::format("{} x {}", rows, columns));
  if (!std::isfinite(heatmap.limit) || heatmap.limit < 0)
    throw InputError(path.string(), "a finite limit of the colours, at least 0",
                     fmt::format("{}", heatmap.limit));
}

void draw_cells(Canvas& canvas, const HeatmapLayout& layout, const ColorRange& range,
                const Heatmap& heatmap) {
  for (Index row = 0; row < heatmap.values.rows(); ++row)
    for (Index column = 0; column < heatmap.values.cols(); ++column)
      canvas.fill(layout.cell(row, column), range.color(heatmap.values(row, column)));
  // Thin, and what it covers shows through.
  for (const Index column : heatmap.x_marks)
    if (column > 0 && column < heatmap.values.cols())
      canvas.fill({layout.cell(0, column).x, layout.plot.y, 1, layout.plot.height}, kInk, 0.8);
  for (const Index row : heatmap.y_marks)
    if (row > 0 && row < heatmap.values.rows())
      canvas.fill({layout.plot.x, layout.cell(row, 0).y, layout.plot.width, 1}, kInk, 0.8);
  canvas.frame(layout.plot, kInk);
}

void draw_axes(Canvas& canvas, const HeatmapLayout& layout) {
  const double after_tick = static_cast<double>(1 + kTick + kNumberGap);
  for (const Index column : layout.x_ticks) {
    const Index x = layout.cell(0, column).x + layout.cell_width / 2;
    canvas.fill({x, layout.plot.bottom() + 1, 1, kTick}, kInk);
    const double y = static_cast<double>(layout.plot.bottom()) + after_tick +
                     static_cast<double>(kCapHeight * kTextScale) / 2;
    draw_text(canvas, {static_cast<double>(x) + 0.5, y}, std::to_string(column), {kTextScale, Align::center});
  }
  for (const Index row : layout.y_ticks) {
    const Index y = layout.cell(row, 0).y + layout.cell_height / 2;
    canvas.fill({layout.plot.x - 1 - kTick, y, kTick, 1}, kInk);
    draw_text(canvas, {static_cast<double>(layout.plot.x) - after_tick, static_cast<double>(y) + 0.5},
              std::to_string(row), {kTextScale, Align::right});
  }
}

void draw_bar(Canvas& canvas, const HeatmapLayout& layout, const ColorRange& range) {
  const Rect& bar = layout.bar;
  const auto last = static_cast<double>(bar.height - 1);
  for (Index y = 0; y < bar.height; ++y) {
    const double t = range.limit > 0 ? 1 - 2 * static_cast<double>(y) / last : 0;
    canvas.fill({bar.x, bar.y + y, bar.width, 1}, diverging_color(t));
  }
  canvas.frame(bar, kInk);
  const double text_x = static_cast<double>(bar.right() + 1 + kTick + kNumberGap);
  for (const BarTick& tick : layout.bar_ticks) {
    const Index y = bar.y + static_cast<Index>(std::lround(tick.at * last));
    canvas.fill({bar.right() + 1, y, kTick, 1}, kInk);
    draw_text(canvas, {text_x, static_cast<double>(y) + 0.5}, tick.text, {kTextScale, Align::left});
  }
  if (layout.no_value.width == 0) return;
  canvas.fill(layout.no_value, kNoValue);
  canvas.frame(layout.no_value, kInk);
  const double middle =
      static_cast<double>(layout.no_value.y) + static_cast<double>(layout.no_value.height) / 2;
  draw_text(canvas, {text_x, middle}, "NaN", {kTextScale, Align::left});
}

void draw_lines(Canvas& canvas, Point at, const std::vector<std::string>& lines, const TextStyle& style) {
  for (const std::string& line : lines) {
    draw_text(canvas, at, line, style);
    (style.upwards ? at.x : at.y) += static_cast<double>(kLineAdvance * style.scale);
  }
}

}  // namespace
}  // namespace png

void write_png(AtomicFile file, const Heatmap& heatmap) {
  png::check(file.path(), heatmap);
  const png::ColorRange range = png::color_range(heatmap);
  const png::HeatmapLayout layout = png::layout_of(heatmap, range);
  png::Canvas canvas(layout.width, layout.height);
  png::draw_cells(canvas, layout, range, heatmap);
  png::draw_axes(canvas, layout);
  png::draw_bar(canvas, layout, range);
  png::draw_lines(canvas, layout.title_at, layout.title, {png::kTextScale});
  png::draw_lines(canvas, layout.x_label_at, layout.x_label, {png::kTextScale, png::Align::center});
  png::draw_lines(canvas, layout.y_label_at, layout.y_label, {png::kTextScale, png::Align::center, true});
  png::draw_lines(canvas, layout.value_label_at, layout.value_label,
                  {png::kTextScale, png::Align::center, true});
  write_file(std::move(file), png::png_bytes(canvas));
}

}  // namespace kvreplay
