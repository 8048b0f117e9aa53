#include "analysis/drawing/axis.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

// Decoration of a heatmap: axes, values, marks, and strips with one number per column above it or one number
// per row at its right.

namespace kvreplay::viewer {
namespace {

/// Columns from which on their text stands below them, reading downwards or as the rest; points. Rows
/// likewise, in lines of text.
constexpr float kTextColumn = 16, kUprightColumn = 70, kTextRow = 1.1F;
/// Room for labels, unless they are longer; points.
constexpr float kRowLabels = 44, kBarLabels = 58;
/// Letters of the text beside a row's number or below a column's axis.
constexpr float kTextLetters = 16, kLeastTextLetters = 6;

/// Round steps so that labels stand at least `spacing` pixels apart.
Index label_step(double cells_per_pixel, double spacing) {
  return std::llround(round_step(std::max(spacing * cells_per_pixel, 1.0)));
}

/// The cells of which a part is in view.
std::pair<Index, Index> cells_in_view(const AxisView& axis, int pixels, Index cells) {
  const Index first = std::max<Index>(static_cast<Index>(std::floor(axis.start)), 0);
  const Index last = std::min<Index>(static_cast<Index>(std::ceil(axis.cell_at(pixels))), cells);
  return {first, std::max(first, last)};
}

/// Text that reads downwards, from `top` on, its middle line there.
void add_text_downwards(ImDrawList* list, ImVec2 top, ImU32 color, const std::string& text) {
  // Written where nothing of it is clipped away, then turned: clipping goes by where it was written.
  const ImVec2 from = list->GetClipRectMin();
  const int first = list->VtxBuffer.Size;
  list->AddText(from, color, text.c_str());
  const float middle = std::floor(ImGui::GetTextLineHeight() / 2);
  for (int i = first; i < list->VtxBuffer.Size; ++i) {
    ImVec2& at = list->VtxBuffer[i].pos;
    at = {std::floor(top.x) + middle - (at.y - from.y), top.y + (at.x - from.x)};
  }
}

/// Black or white, whichever stands out more: by 4.58 at least.
ImU32 ink_on(Rgb color) {
  constexpr ImU32 kBlack = IM_COL32(0, 0, 0, 255), kWhite = IM_COL32(255, 255, 255, 255);
  const ImU32 behind = to_imgui(color);
  return contrast(kBlack, behind) >= contrast(kWhite, behind) ? kBlack : kWhite;
}

/// On a log scale the shortest bars stand for this percentile in view, but for no less than so small a share
/// of the largest.
constexpr double kShortPercent = 5;
constexpr float kLeastShare = 1e-6F;

struct Bars {
  std::vector<float> magnitudes;  ///< by pixel; -1: none
  float most = 0;
};

Bars bars_of(const StripValues& strip, const AxisView& axis, int pixels) {
  Bars bars;
  bars.magnitudes.assign(pixels, -1.0F);
  const auto entry_of = [&](double cell) {
    return static_cast<Index>(
        std::floor((cell - static_cast<double>(strip.first)) / static_cast<double>(strip.step)));
  };
  const auto entries = std::ssize(strip.values);
  for (int p = 0; p < pixels; ++p) {
    const Index first = entry_of(axis.cell_at(p));
    const Index end = std::max(entry_of(std::ceil(axis.cell_at(p + 1)) - 1), first) + 1;
    for (Index i = std::max<Index>(first, 0); i < std::min(end, entries); ++i) {
      const float v = std::abs(strip.values[i]);
      if (!std::isfinite(v)) continue;
      float& bar = bars.magnitudes[p];
      bar = std::max(bar, v);
      bars.most = std::max(bars.most, v);
    }
  }
  return bars;
}

ValueScale scale_of(const Bars& bars, bool log) {
  std::vector<float> positive;
  std::copy_if(bars.magnitudes.begin(), bars.magnitudes.end(), std::back_inserter(positive),
               [](float v) { return v > 0; });
  ValueScale scale;
  scale.kind = log ? ScaleKind::log : ScaleKind::linear;
  scale.low = log ? std::max(percentile(positive, kShortPercent), bars.most * kLeastShare) * 0.8F : 0;
  scale.high = bars.most;
  return usable(scale);
}

}  // namespace

std::string HeatmapView::axes_caption(const HeatmapContent& content) {
  return content.row_name + " \xE2\x86\x93   " + content.column_name + " \xE2\x86\x92";
}

std::string HeatmapView::row_label(const HeatmapContent& content, Index row) {
  return content.row_number ? content.row_number(row) : std::to_string(content.first_row + row);
}

float HeatmapView::row_labels(const HeatmapContent& content) {
  const Theme& t = theme();
  if (!content.numbered || content.size.rows == 0) return t.px(kRowLabels);
  return std::max(t.px(kRowLabels), mono_width(row_label(content, content.size.rows - 1)) + t.px(8));
}

/// By the scale of the frame before.
float HeatmapView::bar_labels(float height) const {
  const Theme& t = theme();
  float width = t.px(kBarLabels);
  for (const double tick : scale_ticks(image_.scale, std::max(2, static_cast<int>(height / t.px(30)))))
    width = std::max(width, mono_width(number_text(tick)) + t.px(8));
  return std::ceil(width);
}

/// By the view of the frame before. At most a quarter of the width and of the height goes to text.
void HeatmapView::make_room_for_text(Frame& f, const HeatmapContent& content) const {
  if (image_.width == 0 || content.size != image_.size) return;
  const Theme& t = theme();
  const float letter = mono_width("8"), line = ImGui::GetTextLineHeight();
  const double wide = 1 / image_.camera.x.cells_per_pixel, high = 1 / image_.camera.y.cells_per_pixel;
  const auto room = [&](float all) {
    const float most = std::min(all / 4, kTextLetters * letter);
    return most >= kLeastTextLetters * letter ? std::floor(most) : 0.0F;
  };
  if (content.column_text) {
    f.upright = wide >= static_cast<double>(t.px(kUprightColumn));
    if (f.upright)
      f.column_text = static_cast<float>(wide);
    else if (wide >= static_cast<double>(std::max(t.px(kTextColumn), line * 0.9F)))
      f.column_text = room(f.size.y);
    f.upright |= f.column_text == 0;
  }
  if (content.row_text && high >= static_cast<double>(line * kTextRow)) f.row_text = room(f.size.x);
}

void HeatmapView::draw_axes(const Frame& f, const HeatmapContent& content) const {
  const Theme& t = theme();
  const float line = ImGui::GetTextLineHeight();
  const AxisView &x = image_.camera.x, &y = image_.camera.y;
  // Caption: what the axes are.
  f.list->AddText({f.origin.x, f.origin.y}, t.dim, elided(axes_caption(content), f.size.x).c_str());
  if (!content.numbered) return;

  ImGui::PushFont(mono_font());
  const auto [first_column, end_column] = cells_in_view(x, image_.width, image_.size.columns);
  const auto column_number = [&](Index c) {
    return content.column_number ? content.column_number(c) : std::to_string(content.first_column + c);
  };
  const Index last = image_.size.columns - 1;
  const float longest = std::max(ImGui::CalcTextSize(std::to_string(content.first_column + last).c_str()).x,
                                 ImGui::CalcTextSize(column_number(last).c_str()).x);
  const bool texts = f.column_text > 0;
  const Index step_x = texts ? 1 : label_step(x.cells_per_pixel, longest + t.px(14));
  float free_from = f.low.x - t.px(30);
  for (Index c = (first_column + step_x - 1) / step_x * step_x; c < end_column; c += step_x) {
    const float px = f.low.x + static_cast<float>(x.pixel_of(static_cast<double>(c) + 0.5));
    if (px < f.low.x || px > f.high.x) continue;
    std::string text = column_number(c);
    if (texts) text.append(" ").append(content.column_text(c));
    f.list->AddLine({px, f.high.y + 1}, {px, f.high.y + t.px(4)}, t.faint);
    if (!f.upright) {
      add_text_downwards(f.list, {px, f.high.y + t.px(5)}, t.dim, elided(text, f.column_text));
      continue;
    }
    if (texts) text = elided(text, f.column_text - t.px(8));
    const float half = ImGui::CalcTextSize(text.c_str()).x / 2;
    if (px - half < free_from || px + half > f.high.x + t.px(24)) continue;
    f.list->AddText({px - half, f.high.y + t.px(5)}, t.dim, text.c_str());
    free_from = px + half + t.px(8);
  }
  const auto [first_row, end_row] = cells_in_view(y, image_.height, image_.size.rows);
  const Index step_y = f.row_text > 0 ? 1 : label_step(y.cells_per_pixel, line * 1.5);
  for (Index r = (first_row + step_y - 1) / step_y * step_y; r < end_row; r += step_y) {
    const float py = f.low.y + static_cast<float>(y.pixel_of(static_cast<double>(r) + 0.5));
    if (py < f.low.y || py > f.high.y) continue;
    std::string text = row_label(content, r);
    if (f.row_text > 0)
      text = elided(fmt::format("{} {}", text, content.row_text(r)), f.low.x - t.px(6) - f.origin.x);
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
        f.list->AddText(at, ink_on(under), text.c_str());
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

void HeatmapView::draw_strip(const Frame& f, const Strip& strip, bool of_rows, HeatmapHit& hit) const {
  const Theme& t = theme();
  const AxisView& axis = of_rows ? image_.camera.y : image_.camera.x;
  const int pixels = of_rows ? image_.height : image_.width;
  const Index cells = of_rows ? image_.size.rows : image_.size.columns;
  const auto begin = std::clamp<Index>(static_cast<Index>(std::floor(axis.start)), 0, cells);
  const auto end = std::clamp<Index>(static_cast<Index>(std::ceil(axis.cell_at(pixels))), begin, cells);
  const StripValues known = strip.values(begin, end, axis.cells_per_pixel);
  const Bars bars = bars_of(known, axis, pixels);
  const ValueScale scale = scale_of(bars, strip.log);
  const float foot = of_rows ? f.high.x + t.px(2) : f.low.y - t.px(2);
  const float length = (of_rows ? f.strip_width : f.strip_height) - t.px(4);
  const ImU32 color = faded(t.series[0], 0.8F);
  for (int p = 0; p < pixels; ++p) {
    const float v = bars.magnitudes[p];
    if (!(v > 0)) continue;
    const float size = length * std::clamp(scale.place(v), 0.0F, 1.0F);
    const auto at = static_cast<float>(p);
    if (of_rows)
      f.list->AddRectFilled({foot, f.low.y + at}, {foot + size, f.low.y + at + 1}, color);
    else
      f.list->AddRectFilled({f.low.x + at, foot - size}, {f.low.x + at + 1, foot}, color);
  }

  if (!hit.strip || hit.strip->of_rows != of_rows) return;
  const Index entry = (hit.strip->cell - known.first) / known.step;
  if (hit.strip->cell < known.first || entry >= std::ssize(known.values)) return;
  const float value = known.values[entry];
  if (std::isnan(value)) return;
  hit.strip->value = value;
  hit.strip->covers = known.step;
}

void HeatmapView::take_strip_mouse(const Frame& f, bool of_rows, HeatmapHit& hit) {
  const ImGuiIO& io = ImGui::GetIO();
  const ImVec2 low = of_rows ? ImVec2{f.high.x + 1, f.low.y} : ImVec2{f.low.x, f.low.y - f.strip_height};
  const ImVec2 high = of_rows ? ImVec2{f.high.x + f.strip_width, f.high.y} : ImVec2{f.high.x, f.low.y - 1};
  ImGui::SetCursorScreenPos(low);
  ImGui::InvisibleButton(of_rows ? "row strip" : "column strip", {high.x - low.x, high.y - low.y});
  if (!ImGui::IsItemHovered()) return;
  const double px = io.MousePos.x - f.low.x, py = io.MousePos.y - f.low.y;
  if (io.MouseWheel != 0) {
    const double factor = std::pow(1.25, static_cast<double>(io.MouseWheel));
    const Camera before = image_.camera;
    image_.camera = zoomed(before, image_.size, image_.width, image_.height, px, py, of_rows ? 1 : factor,
                           of_rows ? factor : 1);
    if (!(image_.camera == before)) {
      hit.view_changed = true;
      fitted_ = false;
    }
  }
  const double cell = std::floor(of_rows ? image_.camera.y.cell_at(py) : image_.camera.x.cell_at(px));
  if (cell < 0 || cell >= static_cast<double>(of_rows ? image_.size.rows : image_.size.columns)) return;
  hit.strip = StripHit{
      of_rows,
      static_cast<Index>(cell),
      {},
      1,
      ImGui::IsMouseReleased(ImGuiMouseButton_Left) && io.MouseDragMaxDistanceSqr[ImGuiMouseButton_Left] < 9};
}

}  // namespace kvreplay::viewer
