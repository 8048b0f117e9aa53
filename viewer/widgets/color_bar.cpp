// A heatmap's colour bar, and the popup behind it in which colours, scale and range are chosen.

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kHistogramValues = 1 << 16;

}  // namespace

void HeatmapView::draw_bar(const Frame& f, const HeatmapContent& content, HeatmapLinks& links) {
  const Theme& t = theme();
  const ValueScale& scale = image_.scale;
  const int steps = static_cast<int>(f.bar_high.y - f.bar_low.y);
  for (int i = 0; i < steps; ++i) {
    const float place = 1 - (static_cast<float>(i) + 0.5F) / static_cast<float>(steps);
    f.list->AddRectFilled({f.bar_low.x, f.bar_low.y + static_cast<float>(i)},
                          {f.bar_high.x, f.bar_low.y + static_cast<float>(i) + 1},
                          to_imgui(color_of(image_.colors, place)));
  }
  f.list->AddRect({f.bar_low.x - 1, f.bar_low.y - 1}, {f.bar_high.x + 1, f.bar_high.y + 1}, t.border);
  if (image_.ink.mark_beyond) {
    f.list->AddTriangleFilled({f.bar_low.x, f.bar_low.y - 2}, {f.bar_high.x, f.bar_low.y - 2},
                              {(f.bar_low.x + f.bar_high.x) / 2, f.bar_low.y - t.px(8)},
                              to_imgui(image_.ink.over));
    f.list->AddTriangleFilled({f.bar_low.x, f.bar_high.y + 2}, {f.bar_high.x, f.bar_high.y + 2},
                              {(f.bar_low.x + f.bar_high.x) / 2, f.bar_high.y + t.px(8)},
                              to_imgui(image_.ink.under));
  }
  ImGui::PushFont(mono_font());
  const float line = ImGui::GetTextLineHeight();
  float free_above = f.bar_high.y + line;
  for (const double tick :
       scale_ticks(scale, std::max(2, static_cast<int>(static_cast<float>(steps) / t.px(30))))) {
    const float y = f.bar_high.y - scale.place(static_cast<float>(tick)) * static_cast<float>(steps);
    if (y > free_above - line || y < f.bar_low.y - 1 || y > f.bar_high.y + 1) continue;
    f.list->AddLine({f.bar_high.x + 1, y}, {f.bar_high.x + t.px(4), y}, t.faint);
    f.list->AddText({f.bar_high.x + t.px(6), y - line / 2}, t.dim, number_text(tick).c_str());
    free_above = y - t.px(2);
  }
  ImGui::PopFont();

  // What the colours mean: quantity, unit, scale, range.
  const RangeKind kind = links.locked ? RangeKind::fixed : (range_chosen_ ? range_.kind : content.range.kind);
  std::string caption = content.quantity;
  if (!content.unit.empty()) caption += ", " + content.unit;
  const std::string how = fmt::format("{}, {}", name_of(scale.kind),
                                      links.locked        ? "locked"
                                      : nothing_selected_ ? "nothing selected"
                                                          : std::string(name_of(kind)));
  const float full = ImGui::CalcTextSize((caption + "   " + how).c_str()).x;
  const float left_caption = ImGui::CalcTextSize(axes_caption(content).c_str()).x + t.px(14);
  std::string text = caption + "   " + how;
  if (full > f.size.x - left_caption) text = how;
  if (ImGui::CalcTextSize(text.c_str()).x > f.size.x - left_caption) text.clear();
  f.list->AddText({f.origin.x + f.size.x - ImGui::CalcTextSize(text.c_str()).x - t.px(2), f.origin.y}, t.dim,
                  text.c_str());

  ImGui::SetCursorScreenPos({f.bar_low.x - t.px(3), f.bar_low.y});
  if (ImGui::InvisibleButton("bar", {f.origin.x + f.size.x - f.bar_low.x, f.bar_high.y - f.bar_low.y}))
    ImGui::OpenPopup("colours");
  if (ImGui::IsItemHovered()) {
    ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
    ImGui::SetTooltip("%s\n%s scale, %s to %s, from %s\nClick to change", caption.c_str(),
                      std::string(name_of(scale.kind)).c_str(),
                      number_text(static_cast<double>(scale.low)).c_str(),
                      number_text(static_cast<double>(scale.high)).c_str(),
                      links.locked        ? "locked with other panels"
                      : nothing_selected_ ? "what is in view: nothing is selected"
                                          : kRangeKinds[kind].meaning.data());
  }
  draw_range_popup(content);
}

void HeatmapView::draw_range_popup(const HeatmapContent& content) {
  if (!ImGui::BeginPopup("colours")) return;
  const Theme& t = theme();
  ImGui::PushItemWidth(t.px(190));
  ImGui::TextUnformatted(content.quantity.c_str());
  ImGui::Separator();
  if (begin_combo("Colours", std::string(name_of(image_.colors)))) {
    for (const ColorMap map : kColorMaps.all())
      if (ImGui::Selectable(std::string(name_of(map)).c_str(), map == image_.colors)) colors_ = map;
    ImGui::EndCombo();
  }
  for (const ScaleKind kind : kScaleKinds.all()) {
    if (kind != ScaleKind::linear) ImGui::SameLine();
    if (ImGui::RadioButton(std::string(name_of(kind)).c_str(), image_.scale.kind == kind)) scale_ = kind;
  }
  const auto chosen = [&] { range_chosen_ = range_edited_ = true; };
  if (!range_chosen_) {
    range_ = content.range;
    range_.symmetric = content.is_signed;
  }
  if (begin_combo("Range", std::string(kRangeKinds[range_.kind].meaning))) {
    for (const RangeFacts& range : kRangeKinds)
      if (ImGui::Selectable(range.meaning.data(), range.id == range_.kind)) {
        range_.kind = range.id;
        range_.fixed_low = image_.scale.low;
        range_.fixed_high = image_.scale.high;
        chosen();
      }
    ImGui::EndCombo();
  }
  if (nothing_selected_) {
    ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + t.px(260));
    dim_text(
        "Nothing is selected, so what is in view counts. Click a cell, or drag over columns with Shift.");
    ImGui::PopTextWrapPos();
  }
  if (ImGui::Checkbox("Symmetric around 0", &range_.symmetric)) chosen();
  if (range_.kind == RangeKind::percentiles) {
    auto low = static_cast<float>(range_.low_percent), high = static_cast<float>(range_.high_percent);
    if (ImGui::DragFloatRange2("Percent", &low, &high, 0.1F, 0, 100, "%.1f")) {
      range_.low_percent = low;
      range_.high_percent = high;
      chosen();
    }
  }
  ImGui::Checkbox("Mark what lies beyond", &mark_beyond_);

  // The histogram of what is in view; its handles set a fixed range.
  std::vector<float> values =
      visible_values(tiles_, image_.camera, image_.size, image_.width, image_.height, kHistogramValues);
  TileStats seen;
  seen.add(values.data(), std::ssize(values));
  if (seen.finite > 0) {
    ValueScale wide = image_.scale;
    wide.low = std::min(
        wide.low, wide.kind == ScaleKind::log ? std::max(seen.least_positive, seen.max * 1e-9F) : seen.min);
    wide.high = std::max(wide.high, seen.max);
    wide = usable(wide);
    const ImVec2 at = ImGui::GetCursorScreenPos(), size = {t.px(260), t.px(64)};
    const Histogram bins = histogram(values, wide, 86);
    const auto most = static_cast<double>(*std::max_element(bins.counts.begin(), bins.counts.end()));
    ImDrawList* list = ImGui::GetWindowDrawList();
    list->AddRectFilled(at, {at.x + size.x, at.y + size.y}, t.window, t.px(3));
    for (std::size_t i = 0; i < bins.counts.size(); ++i) {
      const float x = at.x + size.x * static_cast<float>(i) / static_cast<float>(bins.counts.size());
      const float share =
          most > 0 ? static_cast<float>(std::log1p(static_cast<double>(bins.counts[i])) / std::log1p(most))
                   : 0;
      const float place = (static_cast<float>(i) + 0.5F) / static_cast<float>(bins.counts.size());
      const float color_place = std::clamp(image_.scale.place(wide.value_at(place)), 0.0F, 1.0F);
      list->AddRectFilled({x, at.y + size.y * (1 - share)},
                          {x + size.x / static_cast<float>(bins.counts.size()) + 0.5F, at.y + size.y},
                          to_imgui(color_of(image_.colors, color_place)));
    }
    const auto handle = [&](const char* name, float value, float& end) {
      const float x = at.x + size.x * std::clamp(wide.place(value), 0.0F, 1.0F);
      ImGui::SetCursorScreenPos({x - t.px(5), at.y});
      ImGui::InvisibleButton(name, {t.px(10), size.y});
      if (ImGui::IsItemHovered() || ImGui::IsItemActive()) ImGui::SetMouseCursor(ImGuiMouseCursor_ResizeEW);
      if (ImGui::IsItemActive()) {
        range_.kind = RangeKind::fixed;
        range_.symmetric = false;
        range_.fixed_low = image_.scale.low;
        range_.fixed_high = image_.scale.high;
        end = wide.value_at(std::clamp((ImGui::GetIO().MousePos.x - at.x) / size.x, 0.0F, 1.0F));
        chosen();
      }
      list->AddLine({x, at.y}, {x, at.y + size.y}, t.text, t.px(1.5F));
      list->AddCircleFilled({x, at.y + size.y}, t.px(4), t.text);
    };
    handle("low", image_.scale.low, range_.fixed_low);
    handle("high", image_.scale.high, range_.fixed_high);
    ImGui::SetCursorScreenPos({at.x, at.y + size.y + t.px(8)});
    ImGui::TextDisabled("%lld below, %lld above, %lld without a value", static_cast<long long>(bins.under),
                        static_cast<long long>(bins.over), static_cast<long long>(bins.missing));
  }
  if (ImGui::Button("Back to the default")) {
    colors_.reset();
    scale_.reset();
    range_chosen_ = mark_beyond_ = false;
    range_edited_ = true;
    range_ = {};
  }
  ImGui::PopItemWidth();
  ImGui::EndPopup();
}

}  // namespace kvreplay::viewer
