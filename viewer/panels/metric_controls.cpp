#include "viewer/panels/metric_controls.hpp"

#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <array>
#include <imgui.h>

namespace kvreplay::viewer {

void choose_setting(AppState& state) {
  constexpr std::array<std::string_view, 2> kSettings = {"A", "B"};
  std::size_t shown = state.shows_b() ? 1 : 0;
  ImGui::BeginGroup();
  if (segments("setting", kSettings, shown)) state.show_b = shown == 1;
  ImGui::EndGroup();
  tip("Which setting of What if is looked at. Held, X flips to the other.");
}

float settings_width() {
  return ImGui::CalcTextSize("AB").x + 4 * ImGui::GetStyle().FramePadding.x + theme().px(1);
}

float combo_width(const char* text) {
  return (ImGui::CalcTextSize(text).x + 2 * ImGui::GetStyle().FramePadding.x + ImGui::GetFrameHeight()) /
         theme().scale;
}

std::string title_with_unit(TokenMetric metric) {
  if (kTokenMetrics[metric].unit == MetricUnit::other) return std::string(name_of(metric));
  return fmt::format("{} ({})", name_of(metric), name_of(kTokenMetrics[metric].unit));
}

namespace {

const char* heading_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::score:
      return "Scores, on the window";
    case MetricKind::exact:
      return "Exact errors, on the window";
    case MetricKind::oracle:
      return "Oracles, on the decoding steps";
  }
  return "";
}

std::string why_missing(const Run& run, TokenMetric metric) {
  if (run.dump() == nullptr) return "Not among this run's results.";
  const auto why = why_unavailable(metric, *run.dump());
  if (!why && kTokenMetrics[metric].on_request) return "It takes too long to be shown for every head.";
  return fmt::format("Not there: {}.", why ? *why : "this dump cannot give it");
}

}  // namespace

bool choose_metric(const char* label, const Run& run, const MetricSet& available, TokenMetric& chosen,
                   float width) {
  ImGui::SetNextItemWidth(theme().px(width));
  const bool open = begin_combo(label, std::string(name_of(chosen)), ImGuiComboFlags_HeightLargest);
  if (!open) {
    tip(kTokenMetrics[chosen].meaning);
    return false;
  }
  const TokenMetric before = chosen;
  std::optional<MetricKind> kind;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (kind != kTokenMetrics[metric].kind) {
      if (kind) ImGui::Dummy({0, theme().px(2)});
      kind = kTokenMetrics[metric].kind;
      dim_text(heading_of(*kind));
    }
    const bool there = available.contains(metric);
    const auto flags = there ? ImGuiSelectableFlags_None : ImGuiSelectableFlags_Disabled;
    if (ImGui::Selectable(std::string(name_of(metric)).c_str(), metric == before, flags)) chosen = metric;
    if (there) {
      tip(kTokenMetrics[metric].meaning);
    } else if (ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled)) {
      ImGui::SetTooltip("%s", why_missing(run, metric).c_str());
    }
    if (metric == before) ImGui::SetItemDefaultFocus();
  }
  ImGui::EndCombo();
  return chosen != before;
}

}  // namespace kvreplay::viewer
