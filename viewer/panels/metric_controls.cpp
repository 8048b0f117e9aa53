#include "viewer/panels/metric_controls.hpp"

#include "viewer/questions/named_choices.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <array>
#include <imgui.h>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

bool either(const char* id, std::string_view no, std::string_view yes, bool& value) {
  const std::array names = {no, yes};
  std::size_t chosen = value ? 1 : 0;
  if (!segments(id, names, chosen)) return false;
  value = chosen == 1;
  return true;
}

void text_beside(const std::string& text) {
  ImGui::AlignTextToFramePadding();
  dim_text(text);
}

void told_figure(const char* name, const std::string& value, std::string_view about) {
  ImGui::BeginGroup();
  figure(name, value);
  ImGui::EndGroup();
  tip(about);
}

void choose_setting(AppState& state) {
  bool b = state.shows_b();
  ImGui::BeginGroup();
  if (either("setting", "A", "B", b)) state.show_b = b;
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

std::string why_missing(const Run& run, TokenMetric metric) {
  if (run.dump() == nullptr) return "Not among this run's results.";
  const auto why = why_unavailable(metric, *run.dump());
  if (!why && kTokenMetrics[metric].on_request) return "Only results that asked for it by name have it.";
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

void hint_no_dump(AppState& state, const std::string& text) {
  hint(text);
  const std::string title(action(ActionId::locate_dump).title);
  const float width = ImGui::CalcTextSize(title.c_str()).x + 2 * ImGui::GetStyle().FramePadding.x;
  const float room = ImGui::GetContentRegionAvail().x;
  ImGui::SetCursorPosX(ImGui::GetCursorPosX() + (room - width) / 2);
  if (ImGui::Button(title.c_str())) state.wanted = ActionId::locate_dump;
}

}  // namespace kvreplay::viewer
