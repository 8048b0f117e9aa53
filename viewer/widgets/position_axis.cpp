#include "viewer/widgets/position_axis.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kvreplay::viewer {

void PositionAxis::begin(float left, int pixels, Index positions) {
  const bool another = positions_ != positions;
  positions_ = positions;
  if (fitted_ || another)
    camera_ = fitted(size(), pixels, 1, false);
  else if (pixels_ != pixels)
    camera_ = resized(camera_, size(), pixels_, 1, pixels, 1, false);
  left_ = std::floor(left);
  pixels_ = pixels;
  hovered_.reset();
  clicked_ = false;
}

void PositionAxis::join(const AxisView& other, int pixels) {
  camera_.x = {other.start, other.cells_per_pixel * pixels / pixels_};
  camera_ = clamped(camera_, size(), pixels_, 1);
  fitted_ = false;
}

void PositionAxis::take_mouse() {
  const ImGuiIO& io = ImGui::GetIO();
  const double px = io.MousePos.x - left_;
  const bool over = ImGui::IsItemHovered();
  if (over && io.MouseWheel != 0) {
    camera_ =
        zoomed(camera_, size(), pixels_, 1, px, 0, std::pow(1.25, static_cast<double>(io.MouseWheel)), 1);
    fitted_ = false;
  }
  if (ImGui::IsItemActive() && ImGui::IsMouseDragging(ImGuiMouseButton_Left, 3) && io.MouseDelta.x != 0) {
    camera_ = panned(camera_, size(), pixels_, 1, io.MouseDelta.x, 0);
    fitted_ = false;
  }
  if (over && ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) {
    fitted_ = true;
    camera_ = fitted(size(), pixels_, 1, false);
  }
  const double position = std::floor(camera_.x.cell_at(px));
  if (!over || position < 0 || position >= static_cast<double>(positions_)) return;
  hovered_ = static_cast<Index>(position);
  clicked_ =
      ImGui::IsMouseReleased(ImGuiMouseButton_Left) && io.MouseDragMaxDistanceSqr[ImGuiMouseButton_Left] < 9;
}

float PositionAxis::height() { return ImGui::GetTextLineHeight() + theme().px(5); }

void PositionAxis::draw_numbers(float top, float gap) const {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::PushFont(mono_font());
  ValueScale scale;
  scale.low = static_cast<float>(camera_.x.start);
  scale.high = static_cast<float>(camera_.x.cell_at(pixels_));
  float free_from = left_ - t.px(20);
  for (const double tick : scale_ticks(usable(scale), std::max(2, pixels_ / static_cast<int>(t.px(60))))) {
    if (tick != std::floor(tick) || tick < 0 || tick >= static_cast<double>(positions_)) continue;
    const std::string text = fmt::format("{:.0f}", tick);
    const float x = x_of(static_cast<Index>(tick)), half = ImGui::CalcTextSize(text.c_str()).x / 2;
    const float from = std::clamp(x - half, left_, std::max(left_, right() - 2 * half));
    if (from < free_from) continue;
    list->AddLine({x, top + gap}, {x, top + t.px(4)}, t.faint);
    list->AddText({from, top + t.px(4)}, t.dim, text.c_str());
    free_from = from + 2 * half + t.px(8);
  }
  ImGui::PopFont();
}

}  // namespace kvreplay::viewer
