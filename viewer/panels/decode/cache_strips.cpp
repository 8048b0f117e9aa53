#include "viewer/panels/decode/cache_strips.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// The positions of one pixel.
struct Counts {
  Index there = 0, kept = 0, leaving = 0;
};

ImU32 color_of(const Counts& counts, ImU32 kept) {
  const Theme& t = theme();
  if (counts.there == 0) return 0;
  if (counts.leaving > 0) return t.text;  // one among many is still to be seen
  if (counts.kept == 0) return t.raised;
  const float share = static_cast<float>(counts.kept) / static_cast<float>(counts.there);
  return mixed(t.raised, kept, 0.25F + 0.75F * share);
}

}  // namespace

void CacheStrips::begin(float left, float right, Index positions, const Marks& marks) {
  const int pixels = std::max(static_cast<int>(right - left), 8);
  const MatrixSize size{1, positions};
  if (fitted_ || positions_ != positions)
    camera_ = fitted(size, pixels, 1, false);
  else if (pixels_ != pixels)
    camera_ = resized(camera_, size, pixels_, 1, pixels, 1, false);
  left_ = std::floor(left);
  pixels_ = pixels;
  positions_ = positions;
  marks_ = marks;
  hovered_.reset();
  clicked_ = false;
}

void CacheStrips::take_mouse() {
  const ImGuiIO& io = ImGui::GetIO();
  const MatrixSize size{1, positions_};
  const double px = io.MousePos.x - left_;
  const bool over = ImGui::IsItemHovered();
  if (over && io.MouseWheel != 0) {
    camera_ = zoomed(camera_, size, pixels_, 1, px, 0, std::pow(1.25, static_cast<double>(io.MouseWheel)), 1);
    fitted_ = false;
  }
  if (ImGui::IsItemActive() && ImGui::IsMouseDragging(ImGuiMouseButton_Left, 3) && io.MouseDelta.x != 0) {
    camera_ = panned(camera_, size, pixels_, 1, io.MouseDelta.x, 0);
    fitted_ = false;
  }
  if (over && ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) {
    fitted_ = true;
    camera_ = fitted(size, pixels_, 1, false);
  }
  const double position = std::floor(camera_.x.cell_at(px));
  if (!over || position < 0 || position >= static_cast<double>(positions_)) return;
  hovered_ = static_cast<Index>(position);
  clicked_ =
      ImGui::IsMouseReleased(ImGuiMouseButton_Left) && io.MouseDragMaxDistanceSqr[ImGuiMouseButton_Left] < 9;
}

void CacheStrips::draw(const char* id, float height, ImU32 color, const CacheFates& fates, Index step) {
  const Theme& t = theme();
  const float top = ImGui::GetCursorScreenPos().y, foot = top + height;
  const float right = left_ + static_cast<float>(pixels_);
  ImGui::SetCursorScreenPos({left_, top});
  ImGui::InvisibleButton(id, {right - left_, height});
  take_mouse();
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->AddRectFilled({left_, top}, {right, foot}, t.window);
  ImU32 now = 0;
  int from = 0;
  for (int p = 0; p <= pixels_; ++p) {
    Counts counts;
    if (p < pixels_) {
      const auto first = std::max<Index>(static_cast<Index>(std::floor(camera_.x.cell_at(p))), 0);
      const auto end = std::min(
          std::max<Index>(static_cast<Index>(std::floor(camera_.x.cell_at(p + 1))), first + 1), positions_);
      for (Index position = first; position < end; ++position) {
        const Held held = held_at(fates, position, step);
        if (held == Held::not_there_yet) break;
        ++counts.there;
        if (held == Held::kept) ++counts.kept;
        if (held == Held::leaves_now) ++counts.leaving;
      }
    }
    const ImU32 next = p < pixels_ ? color_of(counts, color) : 0;
    if (next == now && p < pixels_) continue;
    if (p > from && now != 0)
      list->AddRectFilled({left_ + static_cast<float>(from), top}, {left_ + static_cast<float>(p), foot},
                          now);
    now = next;
    from = p;
  }
  list->PushClipRect({left_, top - t.px(2)}, {right, foot + t.px(2)}, true);
  const auto mark = [&](Index position, ImU32 ink) {
    const float x =
        std::floor(left_ + static_cast<float>(camera_.x.pixel_of(static_cast<double>(position) + 0.5))) +
        0.5F;
    list->AddLine({x, top - t.px(2)}, {x, foot + t.px(2)}, ink, t.px(1.2F));
  };
  mark(marks_.now, faded(t.dim, 0.8F));
  if (marks_.hovered) mark(*marks_.hovered, faded(t.text, 0.6F));
  if (marks_.selected) mark(*marks_.selected, t.accent);
  list->PopClipRect();
  ImGui::SetCursorScreenPos({left_, foot});
}

float CacheStrips::axis_height() { return ImGui::GetTextLineHeight() + theme().px(5); }

void CacheStrips::axis() {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float top = ImGui::GetCursorScreenPos().y, right = left_ + static_cast<float>(pixels_);
  ImGui::PushFont(mono_font());
  ValueScale scale;
  scale.low = static_cast<float>(camera_.x.start);
  scale.high = static_cast<float>(camera_.x.cell_at(pixels_));
  float free_from = left_ - t.px(20);
  for (const double tick : scale_ticks(usable(scale), std::max(2, pixels_ / static_cast<int>(t.px(60))))) {
    if (tick != std::floor(tick) || tick < 0 || tick >= static_cast<double>(positions_)) continue;
    const std::string text = fmt::format("{:.0f}", tick);
    const float x = left_ + static_cast<float>(camera_.x.pixel_of(tick + 0.5)),
                half = ImGui::CalcTextSize(text.c_str()).x / 2;
    const float from = std::clamp(x - half, left_, std::max(left_, right - 2 * half));
    if (from < free_from) continue;
    list->AddLine({x, top + t.px(1)}, {x, top + t.px(4)}, t.faint);
    list->AddText({from, top + t.px(4)}, t.dim, text.c_str());
    free_from = from + 2 * half + t.px(8);
  }
  ImGui::PopFont();
  ImGui::Dummy({0, axis_height()});
}

}  // namespace kvreplay::viewer
