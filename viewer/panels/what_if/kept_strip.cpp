#include "viewer/panels/what_if/kept_strip.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/panels/what_if/what_if_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr float kBar = 15, kGap = 2, kLabel = 16;  // points

/// Of the tokens of one pixel, how many are kept, and how many of these by this set alone.
struct Counts {
  Index tokens = 0, kept = 0, alone = 0;
};

ImU32 color_of(const Counts& counts, ImU32 alone) {
  const Theme& t = theme();
  if (counts.tokens == 0) return t.window;
  const auto share = [&](Index n) { return static_cast<float>(n) / static_cast<float>(counts.tokens); };
  const ImU32 color = mixed(t.raised, t.dim, share(counts.kept));
  // A single difference among many tokens is still to be seen.
  return counts.alone > 0 ? mixed(color, alone, std::max(share(counts.alone), 0.45F)) : color;
}

}  // namespace

float KeptStrip::height() { return theme().px(2 * kBar + kGap + 6) + ImGui::GetTextLineHeight(); }

void KeptStrip::take_mouse(const KeptStripContent& content, HeatmapLinks& links, int pixels, float left,
                           KeptStripHit& hit) {
  const MatrixSize size{1, content.l};
  if (fitted_ || l_ != content.l)
    camera_ = fitted(size, pixels, 1, false);
  else if (pixels_ != pixels)
    camera_ = resized(camera_, size, pixels_, 1, pixels, 1, false);
  l_ = content.l;
  pixels_ = pixels;
  const auto shared = links.columns.find(content.link);
  if (links.joined && shared != links.columns.end()) {
    camera_.x = {shared->second.axis.start,
                 shared->second.axis.cells_per_pixel * shared->second.pixels / pixels};
    camera_ = clamped(camera_, size, pixels, 1);
    fitted_ = false;
  }
  const Camera before = camera_;
  const ImGuiIO& io = ImGui::GetIO();
  const bool over = ImGui::IsItemHovered();
  const double px = io.MousePos.x - left;
  if (over && io.MouseWheel != 0) {
    camera_ = zoomed(camera_, size, pixels, 1, px, 0, std::pow(1.25, static_cast<double>(io.MouseWheel)), 1);
    fitted_ = false;
  }
  if (ImGui::IsItemActive() && ImGui::IsMouseDragging(ImGuiMouseButton_Left, 3) && io.MouseDelta.x != 0) {
    camera_ = panned(camera_, size, pixels, 1, io.MouseDelta.x, 0);
    fitted_ = false;
  }
  if (over && ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) {
    fitted_ = true;
    camera_ = fitted(size, pixels, 1, false);
  }
  if (links.joined && !(before == camera_)) links.columns[content.link] = {camera_.x, pixels};
  const double token = std::floor(camera_.x.cell_at(px));
  if (!over || token < 0 || token >= static_cast<double>(content.l)) return;
  hit.hovered = static_cast<Index>(token);
  hit.clicked =
      ImGui::IsMouseReleased(ImGuiMouseButton_Left) && io.MouseDragMaxDistanceSqr[ImGuiMouseButton_Left] < 9;
}

KeptStripHit KeptStrip::draw(const char* id, float width, const KeptStripContent& content,
                             HeatmapLinks& links) {
  const Theme& t = theme();
  KeptStripHit hit;
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float left = std::floor(at.x + t.px(kLabel)), bar = std::floor(t.px(kBar)),
              gap = std::floor(t.px(kGap));
  const int pixels = std::max(static_cast<int>(width - t.px(kLabel)), 8);
  const float right = left + static_cast<float>(pixels), foot = at.y + 2 * bar + gap;
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::SetCursorScreenPos({left, at.y});
  ImGui::InvisibleButton(id, {right - left, foot - at.y});
  take_mouse(content, links, pixels, left, hit);

  const std::array<const KeptSet*, 2> sets = {content.a, content.b};
  const auto kept = [&](std::size_t s, Index token) {
    return sets[s] != nullptr && static_cast<std::size_t>(token) < sets[s]->size() && (*sets[s])[token] != 0;
  };
  const bool both_known = sets[0] != nullptr && sets[1] != nullptr;
  for (std::size_t s = 0; s < 2; ++s) {
    const float top = at.y + static_cast<float>(s) * (bar + gap);
    ImGui::PushFont(bold_font());
    list->AddText({at.x, top + (bar - ImGui::GetTextLineHeight()) / 2}, t.dim, s == 0 ? "A" : "B");
    ImGui::PopFont();
    list->AddRectFilled({left, top}, {right, top + bar}, t.raised);
    if (sets[s] == nullptr) continue;
    ImU32 color = 0;
    int from = 0;
    for (int p = 0; p <= pixels; ++p) {
      Counts counts;
      if (p < pixels) {
        const auto first = std::max<Index>(static_cast<Index>(std::floor(camera_.x.cell_at(p))), 0);
        const auto end = std::min(
            std::max<Index>(static_cast<Index>(std::floor(camera_.x.cell_at(p + 1))), first + 1), content.l);
        for (Index token = first; token < end; ++token) {
          ++counts.tokens;
          if (!kept(s, token)) continue;
          ++counts.kept;
          if (both_known && !kept(1 - s, token)) ++counts.alone;
        }
      }
      const ImU32 next = p < pixels ? color_of(counts, setting_colors()[s]) : 0;
      if (next == color) continue;
      if (p > from && color != 0)
        list->AddRectFilled({left + static_cast<float>(from), top}, {left + static_cast<float>(p), top + bar},
                            color);
      color = next;
      from = p;
    }
  }

  list->PushClipRect({left, at.y - t.px(3)}, {right, foot + t.px(3)}, true);
  const auto mark = [&](Index token, ImU32 color) {
    const auto x = left + static_cast<float>(camera_.x.pixel_of(static_cast<double>(token) + 0.5));
    list->AddLine({std::floor(x) + 0.5F, at.y - t.px(3)}, {std::floor(x) + 0.5F, foot + t.px(3)}, color,
                  t.px(1.4F));
  };
  if (content.hovered) mark(*content.hovered, faded(t.text, 0.6F));
  if (content.selected) mark(*content.selected, t.accent);
  list->PopClipRect();

  ImGui::PushFont(mono_font());
  ValueScale axis;
  axis.low = static_cast<float>(camera_.x.start);
  axis.high = static_cast<float>(camera_.x.cell_at(pixels));
  float free_from = left - t.px(20);
  for (const double tick : scale_ticks(usable(axis), std::max(2, pixels / static_cast<int>(t.px(60))))) {
    if (tick != std::floor(tick) || tick < 0 || tick >= static_cast<double>(content.l)) continue;
    const std::string text = fmt::format("{:.0f}", tick);
    const float x = left + static_cast<float>(camera_.x.pixel_of(tick + 0.5)),
                half = ImGui::CalcTextSize(text.c_str()).x / 2;
    const float from = std::clamp(x - half, left, std::max(left, right - 2 * half));
    if (from < free_from) continue;
    list->AddLine({x, foot + 1}, {x, foot + t.px(4)}, t.faint);
    list->AddText({from, foot + t.px(4)}, t.dim, text.c_str());
    free_from = from + 2 * half + t.px(8);
  }
  ImGui::PopFont();
  ImGui::SetCursorScreenPos({at.x, at.y + height()});
  return hit;
}

void kept_legend(const KeptDifference& difference, float width) {
  const Theme& t = theme();
  const bool narrow = width < t.px(330);
  const auto part = [&](Index tokens, const char* what, ImU32 color) {
    ImGui::SameLine(0, t.px(narrow ? 8 : 12));
    const float side = ImGui::GetTextLineHeight() * 0.6F;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
    ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {at.x + side, top + side}, color, t.px(1.5F));
    ImGui::SetCursorScreenPos({at.x + side + t.px(4), at.y});
    dim_text(fmt::format("{} {}", what, tokens));
  };
  part(difference.both, "both", t.dim);
  part(difference.only_first, narrow ? "A" : "only A", setting_colors()[0]);
  part(difference.only_second, narrow ? "B" : "only B", setting_colors()[1]);
}

}  // namespace kvreplay::viewer
