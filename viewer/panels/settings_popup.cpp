#include "viewer/panels/settings_popup.hpp"

#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <imgui.h>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr float kNames = 96, kControls = 124;  // widths in points

}  // namespace

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
  std::vector<Choice> choices = {{own}, {"none"}};
  for (const char* kind : {"max", "avg"})
    for (const int width : {3, 5, 7, 15, 31}) choices.push_back({fmt::format("{}:{}", kind, width)});
  const auto chosen = combo("##pooling", pool ? OptionValue<Pooling>::text(*pool) : own, choices);
  if (!chosen) return;
  if (*chosen == 0)
    pool.reset();
  else
    pool = OptionValue<Pooling>::parse(evict_option::pool, choices[*chosen].name);
}

}  // namespace kvreplay::viewer
