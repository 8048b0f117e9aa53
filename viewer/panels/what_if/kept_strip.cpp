#include "viewer/panels/what_if/kept_strip.hpp"

#include "viewer/gl/ui_context.hpp"
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

void KeptStrip::draw(const char* id, float width, const KeptStripContent& content, HeatmapLinks& links) {
  const Theme& t = theme();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float bar = std::floor(t.px(kBar)), gap = std::floor(t.px(kGap)), foot = at.y + 2 * bar + gap;
  axis_.begin(at.x + t.px(kLabel), std::max(static_cast<int>(width - t.px(kLabel)), 8), content.l);
  const float left = axis_.left(), right = axis_.right();
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::SetCursorScreenPos({left, at.y});
  ImGui::InvisibleButton(id, {right - left, foot - at.y});
  if (const auto shared = links.columns.find(content.link); links.joined && shared != links.columns.end())
    axis_.join(shared->second.axis, shared->second.pixels);
  const AxisView before = axis_.view();
  axis_.take_mouse();
  if (links.joined && !(before == axis_.view())) links.columns[content.link] = {axis_.view(), axis_.pixels()};

  const std::array<const KeptSet*, 2> sets = {content.a, content.b};
  const auto kept = [&](std::size_t s, Index token) {
    return static_cast<std::size_t>(token) < sets[s]->size() && (*sets[s])[token] != 0;
  };
  const bool both_known = sets[0] != nullptr && sets[1] != nullptr;
  for (std::size_t s = 0; s < 2; ++s) {
    const float top = at.y + static_cast<float>(s) * (bar + gap);
    ImGui::PushFont(bold_font());
    list->AddText({at.x, top + (bar - ImGui::GetTextLineHeight()) / 2}, t.dim, s == 0 ? "A" : "B");
    ImGui::PopFont();
    list->AddRectFilled({left, top}, {right, top + bar}, t.raised);
    if (sets[s] == nullptr) continue;
    axis_.draw(top, top + bar, [&](Index first, Index end) {
      Counts counts;
      for (Index token = first; token < end; ++token) {
        ++counts.tokens;
        if (!kept(s, token)) continue;
        ++counts.kept;
        if (both_known && !kept(1 - s, token)) ++counts.alone;
      }
      return color_of(counts, setting_colors()[s]);
    });
  }

  list->PushClipRect({left, at.y - t.px(3)}, {right, foot + t.px(3)}, true);
  const auto mark = [&](Index token, ImU32 color) {
    const float x = std::floor(axis_.x_of(token)) + 0.5F;
    list->AddLine({x, at.y - t.px(3)}, {x, foot + t.px(3)}, color, t.px(1.4F));
  };
  // What is chosen together stands above: it must not hide what is kept.
  axis_.draw(at.y - t.px(3), at.y - 1, [&](Index first, Index end) {
    const auto next = std::lower_bound(content.chosen.begin(), content.chosen.end(), first);
    return next != content.chosen.end() && *next < end ? t.accent : ImU32{0};
  });
  if (content.hovered) mark(*content.hovered, faded(t.text, 0.6F));
  if (content.selected) mark(*content.selected, t.accent);
  list->PopClipRect();
  axis_.draw_numbers(foot, 1);
  // Its height in points, whatever its bars are rounded to.
  ImGui::SetCursorScreenPos({at.x, at.y + t.px(2 * kBar + kGap + 6) + ImGui::GetTextLineHeight()});
}

void kept_legend(const KeptDifference& difference, float width) {
  const Theme& t = theme();
  const float side = ImGui::GetTextLineHeight() * 0.6F, space = t.px(4);
  const auto text_of = [](Index tokens, const char* what) { return fmt::format("{} {}", what, tokens); };
  float needed = ImGui::GetItemRectSize().x;
  for (const std::string& text : {text_of(difference.both, "both"), text_of(difference.only_first, "only A"),
                                  text_of(difference.only_second, "only B")})
    needed += t.px(12) + side + space + ImGui::CalcTextSize(text.c_str()).x;
  const bool narrow = width < needed;
  const auto part = [&](Index tokens, const char* what, ImU32 color) {
    flow(side + space + ImGui::CalcTextSize(text_of(tokens, what).c_str()).x + t.px(4));
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
    ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {at.x + side, top + side}, color, t.px(1.5F));
    ImGui::SetCursorScreenPos({at.x + side + space, at.y});
    dim_text(text_of(tokens, what));
  };
  part(difference.both, "both", t.dim);
  part(difference.only_first, narrow ? "A" : "only A", setting_colors()[0]);
  part(difference.only_second, narrow ? "B" : "only B", setting_colors()[1]);
}

}  // namespace kvreplay::viewer
