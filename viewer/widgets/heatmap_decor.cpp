// What stands on and around a heatmap's cells: axes, values, marks.

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/number_text.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// Round steps so that labels stand at least `spacing` pixels apart.
Index label_step(double cells_per_pixel, double spacing) {
  const double least = std::max(spacing * cells_per_pixel, 1.0);
  Index step = 1;
  for (int i = 0; static_cast<double>(step) < least; ++i) step = i % 3 == 1 ? step / 2 * 5 : 2 * step;
  return step;
}

/// The cells of which a part is in view.
std::pair<Index, Index> cells_in_view(const AxisView& axis, int pixels, Index cells) {
  const Index first = std::max<Index>(static_cast<Index>(std::floor(axis.start)), 0);
  const Index last = std::min<Index>(static_cast<Index>(std::ceil(axis.cell_at(pixels))), cells);
  return {first, std::max(first, last)};
}

bool is_bright(Rgb c) { return 0.299 * c.r + 0.587 * c.g + 0.114 * c.b > 140; }

}  // namespace

void HeatmapView::draw_axes(const Frame& f, const HeatmapContent& content) const {
  const Theme& t = theme();
  const float line = ImGui::GetTextLineHeight();
  const AxisView &x = image_.camera.x, &y = image_.camera.y;
  // Caption: what the axes are.
  const std::string caption = content.row_name + " \xE2\x86\x93   " + content.column_name + " \xE2\x86\x92";
  f.list->AddText({f.origin.x, f.origin.y}, t.dim, caption.c_str());
  if (!content.numbered) return;

  ImGui::PushFont(mono_font());
  const auto [first_column, end_column] = cells_in_view(x, image_.width, image_.size.columns);
  const float longest =
      ImGui::CalcTextSize(std::to_string(content.first_column + image_.size.columns - 1).c_str()).x;
  const Index step_x = label_step(x.cells_per_pixel, content.column_text ? t.px(70) : longest + t.px(14));
  const bool texts = content.column_text && step_x == 1;
  float free_from = f.low.x - t.px(30);
  for (Index c = (first_column + step_x - 1) / step_x * step_x; c < end_column; c += step_x) {
    const float px = f.low.x + static_cast<float>(x.pixel_of(static_cast<double>(c) + 0.5));
    if (px < f.low.x || px > f.high.x) continue;
    std::string text = std::to_string(content.first_column + c);
    if (texts) text.append(" ").append(content.column_text(c));
    const float half = ImGui::CalcTextSize(text.c_str()).x / 2;
    f.list->AddLine({px, f.high.y + 1}, {px, f.high.y + t.px(4)}, t.faint);
    if (px - half < free_from || px + half > f.high.x + t.px(24)) continue;
    f.list->AddText({px - half, f.high.y + t.px(5)}, t.dim, text.c_str());
    free_from = px + half + t.px(8);
  }
  const auto [first_row, end_row] = cells_in_view(y, image_.height, image_.size.rows);
  const Index step_y = label_step(y.cells_per_pixel, line * 1.5);
  for (Index r = (first_row + step_y - 1) / step_y * step_y; r < end_row; r += step_y) {
    const float py = f.low.y + static_cast<float>(y.pixel_of(static_cast<double>(r) + 0.5));
    if (py < f.low.y || py > f.high.y) continue;
    const std::string text = content.row_text ? content.row_text(r) : std::to_string(content.first_row + r);
    const float extent = ImGui::CalcTextSize(text.c_str()).x;
    f.list->AddLine({f.low.x - t.px(4), py}, {f.low.x - 1, py}, t.faint);
    f.list->AddText({f.low.x - t.px(6) - extent, py - line / 2}, t.dim, text.c_str());
  }
  ImGui::PopFont();
}

void HeatmapView::draw_cells(const Frame& f) const {
  const AxisView &x = image_.camera.x, &y = image_.camera.y;
  const double wide = 1 / x.cells_per_pixel, high = 1 / y.cells_per_pixel;
  ImGui::PushFont(mono_font());
  const ImVec2 sample = ImGui::CalcTextSize(kWidestNumber);
  if (wide >= sample.x + theme().px(6) && high >= sample.y + theme().px(4)) {
    const auto [first_row, end_row] = cells_in_view(y, image_.height, image_.size.rows);
    const auto [first_column, end_column] = cells_in_view(x, image_.width, image_.size.columns);
    const auto range = static_cast<double>(std::max(std::abs(image_.scale.low), std::abs(image_.scale.high)));
    f.list->PushClipRect(f.low, f.high, true);
    for (Index r = first_row; r < end_row; ++r)
      for (Index c = first_column; c < end_column; ++c) {
        const auto tile = tiles_.find({0, r >> kTileBits, c >> kTileBits});
        if (tile == tiles_.end()) continue;
        const float v =
            tile->second->values[(r & (kTileSize - 1)) * tile->second->columns + (c & (kTileSize - 1))];
        if (std::isnan(v)) continue;
        const std::string text = number_text(static_cast<double>(v), range);
        const ImVec2 extent = ImGui::CalcTextSize(text.c_str());
        const ImVec2 at = {
            f.low.x + static_cast<float>(x.pixel_of(static_cast<double>(c) + 0.5)) - extent.x / 2,
            f.low.y + static_cast<float>(y.pixel_of(static_cast<double>(r) + 0.5)) - extent.y / 2};
        const Rgb under = color_of(image_.colors, std::clamp(image_.scale.place(v), 0.0F, 1.0F));
        f.list->AddText(at, is_bright(under) ? IM_COL32(20, 22, 26, 255) : IM_COL32(245, 246, 248, 255),
                        text.c_str());
      }
    f.list->PopClipRect();
  }
  ImGui::PopFont();
}

void HeatmapView::draw_marks(const Frame& f, const HeatmapContent& content) const {
  const Theme& t = theme();
  const AxisView &x = image_.camera.x, &y = image_.camera.y;
  const auto px = [&](Index c, double part) {
    return f.low.x + static_cast<float>(x.pixel_of(static_cast<double>(c) + part));
  };
  const auto py = [&](Index r, double part) {
    return f.low.y + static_cast<float>(y.pixel_of(static_cast<double>(r) + part));
  };
  f.list->PushClipRect({f.low.x - t.px(5), f.low.y - t.px(5)}, {f.high.x + t.px(5), f.high.y + t.px(5)},
                       true);
  const auto band = [&](bool column, Index at, ImU32 color) {
    const float low = column ? px(at, 0) : py(at, 0), high = column ? px(at, 1) : py(at, 1);
    const auto line = [&](float p) {
      const float edge = std::floor(p) + 0.5F;
      if (column)
        f.list->AddLine({edge, f.low.y}, {edge, f.high.y}, color);
      else
        f.list->AddLine({f.low.x, edge}, {f.high.x, edge}, color);
    };
    if (high - low < 5) return line((low + high) / 2);
    line(low);
    line(high);
  };
  const auto outline = [&](Index row, Index column, ImU32 color) {
    const ImVec2 low = {std::floor(px(column, 0)), std::floor(py(row, 0))};
    const ImVec2 high = {std::floor(px(column, 1)), std::floor(py(row, 1))};
    // A dark line on both sides, for cells of any colour.
    const float thick = t.px(2);
    f.list->AddRect(low, high, IM_COL32(0, 0, 0, 150), 0, 0, thick + 2);
    f.list->AddRect(low, high, color, 0, 0, thick);
  };
  if (content.outline_cell) {
    if (content.hover_row && content.hover_column)
      outline(*content.hover_row, *content.hover_column, faded(t.text, 0.6F));
    if (content.row && content.column) outline(*content.row, *content.column, t.accent);
  } else {
    if (content.hover_column) band(true, *content.hover_column, faded(t.text, 0.35F));
    if (content.hover_row) band(false, *content.hover_row, faded(t.text, 0.35F));
    if (content.column) band(true, *content.column, t.accent);
    if (content.row) band(false, *content.row, t.accent);
  }
  for (const Index c : content.selected_columns)
    f.list->AddRectFilled({px(c, 0), f.low.y - t.px(4)}, {std::max(px(c, 1), px(c, 0) + 1), f.low.y - 1},
                          t.accent);
  for (const Index c : content.column_marks)
    f.list->AddRectFilled({px(c, 0.1), f.high.y + 1},
                          {std::max(px(c, 0.9), px(c, 0.1) + 1), f.high.y + t.px(4)}, t.warning);
  for (const Index r : content.row_marks)
    f.list->AddRectFilled({f.low.x - t.px(4), py(r, 0.1)},
                          {f.low.x - 1, std::max(py(r, 0.9), py(r, 0.1) + 1)}, t.warning);
  f.list->PopClipRect();
}

}  // namespace kvreplay::viewer
