#include "viewer/panels/metric_controls.hpp"

#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/named_choices.hpp"

#include <fmt/format.h>

#include <imgui.h>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

void flow(float width) {
  const float right = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x;
  if (ImGui::GetItemRectMax().x + ImGui::GetStyle().ItemSpacing.x + width <= right) ImGui::SameLine();
}

float check_width(const char* label) {
  return ImGui::GetFrameHeight() + ImGui::GetStyle().ItemInnerSpacing.x + ImGui::CalcTextSize(label).x;
}

std::string title_with_unit(TokenMetric metric) {
  if (kTokenMetrics[metric].unit == MetricUnit::other) return std::string(name_of(metric));
  return fmt::format("{} ({})", name_of(metric), name_of(kTokenMetrics[metric].unit));
}

namespace {

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
  std::vector<Choice> choices;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    Choice choice = choice_of(metric);
    choice.enabled = available.contains(metric);
    if (!choice.enabled) choice.tip = why_missing(run, metric);
    choices.push_back(std::move(choice));
  }
  const auto picked = choice_combo(label, std::string(name_of(chosen)), choices);
  tip(about(choice_of(chosen)));
  if (!picked || kTokenMetrics.all()[*picked] == chosen) return false;
  chosen = kTokenMetrics.all()[*picked];
  return true;
}

}  // namespace kvreplay::viewer
