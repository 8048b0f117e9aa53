#include "viewer/gl/ui_context.hpp"
#include "viewer/model/session_keys.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Colour settings of a heatmap (its own, or those of the heatmaps that it is locked with), the colour bar,
// and the popup in which colours, scale and range are chosen.

namespace kvreplay::viewer {
namespace {

/// Texels that a range is taken from.
constexpr std::size_t kValuesSampled = 1 << 16;

constexpr std::size_t kHistogramValues = 1 << 16;

}  // namespace

/// Bright is worse in every theme: an exported figure, which is light, has the colours of the screen.
bool HeatmapView::reversed(const HeatmapContent& content) {
  return content.bad == BadEnd::low && !content.is_signed;
}

void HeatmapView::choose_scale(const HeatmapContent& content, HeatmapLinks& links) {
  image_.colors = {colors_.value_or(content.is_signed ? ColorMap::rdbu : ColorMap::viridis),
                   reversed_.value_or(reversed(content))};
  RangeChoice choice = range_chosen_ ? range_ : content.range;
  if (!range_chosen_) choice.symmetric = content.is_signed;
  ScaleKind scale = scale_.value_or(content.scale);
  const auto lock = links.ranges.find(content.unit);
  const bool edited = std::exchange(range_edited_, false);
  const bool held = links.locked && lock != links.ranges.end() && !edited;
  if (held) {
    choice.kind = RangeKind::fixed;
    choice.fixed_low = lock->second.first;
    choice.fixed_high = lock->second.second;
    choice.symmetric = false;
  }
  std::vector<float> visible, selected;
  if (choice.kind != RangeKind::fixed)
    visible =
        visible_values(tiles_, image_.camera, content.size, image_.width, image_.height, kValuesSampled);
  // Percentiles leave an outlier out by themselves.
  if (content.is_signed && !scale_ && scale == ScaleKind::linear && choice.kind != RangeKind::percentiles &&
      has_outlier(visible))
    scale = ScaleKind::symlog;
  nothing_selected_ = false;
  if (choice.kind == RangeKind::selection) {
    std::vector<Index> columns = content.selected_columns;
    if (columns.empty() && content.column) columns.push_back(*content.column);
    nothing_selected_ = columns.empty() && !content.row;
    selected = selected_values(tiles_, image_.camera, content.size, image_.width, image_.height, columns,
                               content.row, kValuesSampled);
  }
  image_.scale = scale_in_range(choice, scale, known_, visible, selected);
  if (content.log_depth > 0 && !range_chosen_ && !held && image_.scale.kind == ScaleKind::log)
    image_.scale.low = std::max(image_.scale.low, image_.scale.high * content.log_depth);
  if (links.locked && !held && complete_ && known_.finite > 0)
    links.ranges[content.unit] = {image_.scale.low, image_.scale.high};
}

nlohmann::json HeatmapView::save() const {
  nlohmann::json json;
  if (colors_) json["colors"] = name_of(*colors_);
  if (reversed_) json["reversed"] = *reversed_;
  if (scale_) json["scale"] = name_of(*scale_);
  json["mark_beyond"] = mark_beyond_;
  if (range_chosen_)
    json["range"] = {{"kind", name_of(range_.kind)},      {"symmetric", range_.symmetric},
                     {"low_percent", range_.low_percent}, {"high_percent", range_.high_percent},
                     {"low", range_.fixed_low},           {"high", range_.fixed_high}};
  return json;
}

void HeatmapView::load(const nlohmann::json& json) {
  Keys keys(json);
  keys.read("colors", colors_, kColorMaps);
  keys.read("reversed", reversed_);
  keys.read("scale", scale_, kScaleKinds);
  keys.read("mark_beyond", mark_beyond_);
  const nlohmann::json* range = keys.at("range");
  if (range == nullptr) return;
  Keys of_range(*range);
  std::optional<RangeKind> kind;
  of_range.read("kind", kind, kRangeKinds);
  range_chosen_ = kind.has_value();
  range_.kind = kind.value_or(range_.kind);
  of_range.read("symmetric", range_.symmetric);
  of_range.read("low_percent", range_.low_percent, 0.0, 100.0);
  of_range.read("high_percent", range_.high_percent, 0.0, 100.0);
  constexpr float kMost = std::numeric_limits<float>::max();
  of_range.read("low", range_.fixed_low, -kMost, kMost);
  of_range.read("high", range_.fixed_high, -kMost, kMost);
}

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
  // A range that nobody chose says nothing where there are no values, and where they are one nothing but
  // that.
  const bool chosen = links.locked || (range_chosen_ && range_.kind == RangeKind::fixed);
  const bool none = !chosen && known_.finite == 0, one = !chosen && !none && known_.min == known_.max;
  // A word at each end, where there is room for numbers between them.
  const float line = ImGui::GetTextLineHeight();
  const bool words = !none && !one && !content.low_word.empty() && static_cast<float>(steps) >= 5 * line;
  if (words) {
    f.list->AddText({f.bar_high.x + t.px(6), f.bar_low.y - t.px(2)}, t.dim, content.high_word.c_str());
    f.list->AddText({f.bar_high.x + t.px(6), f.bar_high.y - line + t.px(2)}, t.dim, content.low_word.c_str());
  }
  const float top = f.bar_low.y + (words ? 1.5F * line : -1), foot = words ? 1.5F * line : -1;
  ImGui::PushFont(mono_font());
  float free_above = f.bar_high.y + line;
  const int most = std::max(2, static_cast<int>(static_cast<float>(steps) / t.px(30)));
  std::vector<double> ticks;
  if (one)
    ticks.push_back(static_cast<double>(known_.min));
  else if (!none)
    ticks = scale_ticks(scale, most);
  for (const double tick : ticks) {
    const float y = f.bar_high.y - scale.place(static_cast<float>(tick)) * static_cast<float>(steps);
    if (y > free_above - line || y < top || y > f.bar_high.y - foot) continue;
    f.list->AddLine({f.bar_high.x + 1, y}, {f.bar_high.x + t.px(4), y}, t.faint);
    f.list->AddText({f.bar_high.x + t.px(6), y - line / 2}, t.dim, number_text(tick).c_str());
    free_above = y - t.px(2);
  }
  ImGui::PopFont();

  // Caption of the colour bar: quantity, unit, scale, range.
  const RangeKind kind = links.locked ? RangeKind::fixed : (range_chosen_ ? range_.kind : content.range.kind);
  std::string caption = content.quantity;
  if (!content.unit.empty()) caption += ", " + content.unit;
  const std::string how = fmt::format("{}, {}", name_of(scale.kind),
                                      links.locked        ? "locked"
                                      : none              ? "no values"
                                      : one               ? "one value"
                                      : nothing_selected_ ? "nothing selected"
                                                          : std::string(name_of(kind)));
  const float room = f.size.x - ImGui::CalcTextSize(axes_caption(content).c_str()).x - t.px(14);
  std::string text;
  for (const std::string& one : {caption + "   " + how, caption, content.unit, how}) {
    if (one.empty() || ImGui::CalcTextSize(one.c_str()).x > room) continue;
    text = one;
    break;
  }
  f.list->AddText({f.origin.x + f.size.x - ImGui::CalcTextSize(text.c_str()).x - t.px(2), f.origin.y}, t.dim,
                  text.c_str());

  ImGui::SetCursorScreenPos({f.bar_low.x - t.px(3), f.bar_low.y});
  if (ImGui::InvisibleButton("bar", {f.origin.x + f.size.x - f.bar_low.x, f.bar_high.y - f.bar_low.y}))
    ImGui::OpenPopup("colours");
  if (ImGui::IsItemHovered()) {
    ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
    const std::string range = none  ? "no values here"
                              : one ? "one value: " + number_text(static_cast<double>(known_.min))
                                    : fmt::format("{} scale, {} to {}, from {}", name_of(scale.kind),
                                                  number_text(static_cast<double>(scale.low)),
                                                  number_text(static_cast<double>(scale.high)),
                                                  links.locked        ? "locked with other panels"
                                                  : nothing_selected_ ? "what is in view: nothing is selected"
                                                                      : kRangeKinds[kind].meaning);
    ImGui::SetTooltip("%s\n%s\nClick to change", caption.c_str(), range.c_str());
  }
  draw_range_popup(content);
}

/// Takes up the range's ends as they are now.
void HeatmapView::choose_range(RangeKind kind) {
  range_.kind = kind;
  range_.fixed_low = image_.scale.low;
  range_.fixed_high = image_.scale.high;
  range_chosen_ = range_edited_ = true;
}

/// The histogram of what is in view; its handles set a fixed range.
void HeatmapView::draw_histogram() {
  const Theme& t = theme();
  std::vector<float> values =
      visible_values(tiles_, image_.camera, image_.size, image_.width, image_.height, kHistogramValues);
  TileStats seen;
  seen.add(values.data(), std::ssize(values));
  if (seen.finite == 0) return;
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
        most > 0 ? static_cast<float>(std::log1p(static_cast<double>(bins.counts[i])) / std::log1p(most)) : 0;
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
      choose_range(RangeKind::fixed);
      range_.symmetric = false;
      end = wide.value_at(std::clamp((ImGui::GetIO().MousePos.x - at.x) / size.x, 0.0F, 1.0F));
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

void HeatmapView::draw_range_popup(const HeatmapContent& content) {
  if (!ImGui::BeginPopup("colours")) return;
  const Theme& t = theme();
  ImGui::PushItemWidth(t.px(190));
  ImGui::TextUnformatted(content.quantity.c_str());
  ImGui::Separator();
  if (begin_combo("Colours", std::string(name_of(image_.colors.map)))) {
    for (const ColorMap map : kColorMaps.all())
      if (ImGui::Selectable(std::string(name_of(map)).c_str(), map == image_.colors.map)) colors_ = map;
    ImGui::EndCombo();
  }
  ImGui::SameLine();
  if (ImGui::Checkbox("Reversed", &image_.colors.reversed)) reversed_ = image_.colors.reversed;
  for (const ScaleKind kind : kScaleKinds.all()) {
    if (kind != ScaleKind::linear) ImGui::SameLine();
    if (ImGui::RadioButton(std::string(name_of(kind)).c_str(), image_.scale.kind == kind)) scale_ = kind;
  }
  if (!range_chosen_) {
    range_ = content.range;
    range_.symmetric = content.is_signed;
  }
  if (begin_combo("Range", std::string(kRangeKinds[range_.kind].meaning))) {
    for (const RangeFacts& range : kRangeKinds)
      if (ImGui::Selectable(range.meaning.data(), range.id == range_.kind)) {
        choose_range(range.id);
      }
    ImGui::EndCombo();
  }
  if (nothing_selected_)
    wrapped_text(
        "Nothing is selected, so what is in view counts. Click a cell, or drag over columns with Shift.",
        t.dim, t.px(260));
  if (ImGui::Checkbox("Symmetric around 0", &range_.symmetric)) range_chosen_ = range_edited_ = true;
  if (range_.kind == RangeKind::percentiles) {
    auto low = static_cast<float>(range_.low_percent), high = static_cast<float>(range_.high_percent);
    if (ImGui::DragFloatRange2("Percent", &low, &high, 0.1F, 0, 100, "%.1f")) {
      range_.low_percent = low;
      range_.high_percent = high;
      range_chosen_ = range_edited_ = true;
    }
  }
  ImGui::Checkbox("Mark what lies beyond", &mark_beyond_);

  draw_histogram();
  if (ImGui::Button("Back to the default")) {
    colors_.reset();
    reversed_.reset();
    scale_.reset();
    range_chosen_ = mark_beyond_ = false;
    range_edited_ = true;
    range_ = {};
  }
  ImGui::PopItemWidth();
  ImGui::EndPopup();
}

}  // namespace kvreplay::viewer
