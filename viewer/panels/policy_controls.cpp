#include "viewer/panels/policy_controls.hpp"

#include "analysis/results/kept_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstring>
#include <imgui.h>
#include <vector>

namespace kvreplay::viewer {

void edit_kept_share(double& sigma, const char* format, int flags) {
  auto kept = static_cast<float>(100 * rest_of(sigma));
  if (ImGui::SliderFloat("##sigma", &kept, 1, 99, format, flags))
    sigma = rest_of(std::clamp(std::round(static_cast<double>(kept) * 10) / 1000, 0.001, 0.999));
}

std::optional<std::size_t> combo(const char* id, const std::string& now, const std::vector<Choice>& choices) {
  ImGui::SetNextItemWidth(-FLT_MIN);
  return choice_combo(id, now, choices, ImGuiComboFlags_NoArrowButton);
}

bool edit_optional(const OptionFacts& option, std::optional<Index>& value, const std::string& own,
                   Index most) {
  char text[24] = "";
  if (value) fmt::format_to_n(text, sizeof text - 1, "{}", *value).out[0] = 0;
  ImGui::SetNextItemWidth(-FLT_MIN);
  const std::string id = fmt::format("##{}", option.name);
  if (!ImGui::InputTextWithHint(id.c_str(), own.c_str(), text, sizeof text, ImGuiInputTextFlags_CharsDecimal))
    return false;
  Index typed = 0;
  const auto read = std::from_chars(text, text + std::strlen(text), typed);
  const std::optional<Index> before = value;
  if (text[0] == 0)
    value.reset();
  else if (read.ec == std::errc())
    value = std::clamp(typed, option.least, std::max(option.least, most));
  return value != before;
}

constexpr float kNames = 96, kControls = 124;  // of the settings' table, in points

bool settings_button(const std::string& changed) {
  const std::string label = changed.empty() ? "More" : changed;
  flow(ImGui::CalcTextSize(label.c_str()).x + 2 * ImGui::GetStyle().FramePadding.x);
  if (!changed.empty()) ImGui::PushStyleColor(ImGuiCol_Button, theme().accent_soft);
  // Its place in the id must not change with its text.
  if (ImGui::Button((label + "###more").c_str())) ImGui::OpenPopup("settings");
  if (!changed.empty()) ImGui::PopStyleColor();
  tip(changed.empty() ? "More settings" : "Settings that were changed; click for all of them");
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const float most_right = view->Pos.x + view->Size.x - theme().px(kNames + kControls + 48);
  ImGui::SetNextWindowPos(
      {std::min(ImGui::GetItemRectMin().x, most_right), ImGui::GetItemRectMax().y + theme().px(3)});
  if (!ImGui::BeginPopup("settings")) return false;
  if (!ImGui::BeginTable("rows", 2)) {
    ImGui::EndPopup();
    return false;
  }
  ImGui::TableSetupColumn("name", ImGuiTableColumnFlags_WidthFixed, theme().px(kNames));
  ImGui::TableSetupColumn("control", ImGuiTableColumnFlags_WidthFixed, theme().px(kControls));
  return true;
}

void settings_row(const OptionFacts& option) {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  ImGui::AlignTextToFramePadding();
  dim_text(title_of(option));
  tip(option.meaning.data());
  ImGui::TableNextColumn();
}

void end_settings() {
  ImGui::EndTable();
  ImGui::EndPopup();
}

void edit_pooling(std::optional<Pooling>& pool, const std::string& own) {
  std::vector<Choice> choices = {{.name = own}, {.name = "none"}};
  for (const char* kind : {"max", "avg"})
    for (const int width : {3, 5, 7, 15, 31}) choices.push_back({.name = fmt::format("{}:{}", kind, width)});
  const auto chosen = combo("##pooling", pool ? OptionValue<Pooling>::text(*pool) : own, choices);
  if (!chosen) return;
  if (*chosen == 0)
    pool.reset();
  else
    pool = OptionValue<Pooling>::parse(evict_option::pool, choices[*chosen].name);
}

}  // namespace kvreplay::viewer
