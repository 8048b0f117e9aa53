#include "viewer/panels/picture_frame.hpp"

#include "viewer/widgets/theme.hpp"

#include <imgui.h>

namespace kvreplay::viewer {
namespace {

/// Pixels of a picture from which its name has room, in points.
constexpr float kNamed = 46;

struct Corners {
  ImVec2 low, high;
};
Corners corners_of(const HeatmapView& view, const SheetLayout& layout, Index number) {
  const auto row = static_cast<double>(layout.first_row(number)),
             column = static_cast<double>(layout.first_column(number));
  return {view.pixel_of(row, column), view.pixel_of(row + static_cast<double>(layout.picture.rows),
                                                    column + static_cast<double>(layout.picture.columns))};
}

/// The line's lower end.
float draw_line(const std::string& text, float top, float right, ImU32 color) {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const ImVec2 extent = ImGui::CalcTextSize(text.c_str());
  const ImVec2 at{right - extent.x - t.px(4), top + t.px(2)};
  const float bottom = at.y + extent.y + t.px(1);
  list->AddRectFilled({at.x - t.px(3), at.y - t.px(1)}, {right - t.px(1), bottom}, faded(t.panel, 0.85F));
  list->AddText(at, color, text.c_str());
  return bottom;
}

}  // namespace

bool picture_in_view(const HeatmapView& view, const SheetLayout& layout, Index number) {
  if (!view.camera()) return true;
  const ImVec2 low = view.map_low(), high = view.map_high();
  const auto [from, to] = corners_of(view, layout, number);
  return to.x > low.x && from.x < high.x && to.y > low.y && from.y < high.y;
}

void frame_picture(const HeatmapView& view, const SheetLayout& layout, Index number, bool selected,
                   bool hovered, std::span<const std::string> lines) {
  const Theme& t = theme();
  const auto [low, high] = corners_of(view, layout, number);
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->PushClipRect(view.map_low(), view.map_high(), true);
  list->AddRect(low, high,
                selected  ? t.accent
                : hovered ? t.text
                          : t.border,
                0, 0, selected ? t.px(2.4F) : t.px(1));
  float top = low.y;
  for (const std::string& line : lines) {
    if (high.x - low.x < t.px(kNamed)) break;
    if (top > low.y && top + 2 * ImGui::GetTextLineHeight() >= high.y) break;
    top = draw_line(line, top, high.x, selected ? t.accent : t.text);
  }
  list->PopClipRect();
}

}  // namespace kvreplay::viewer
