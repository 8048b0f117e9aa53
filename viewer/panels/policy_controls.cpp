#include "viewer/panels/policy_controls.hpp"

#include "analysis/results/kept_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstring>
#include <imgui.h>

namespace kvreplay::viewer {

void edit_kept_share(double& sigma, const char* format, int flags) {
  auto kept = static_cast<float>(100 * rest_of(sigma));
  if (ImGui::SliderFloat("##sigma", &kept, 1, 99, format, flags))
    sigma = rest_of(std::clamp(std::round(static_cast<double>(kept) * 10) / 1000, 0.001, 0.999));
}

bool edit_kept(KeptBudget& budget, Index l, const char* share_format, int flags) {
  const KeptBudget before = budget;
  if (budget.sigma_budget) {
    edit_kept_share(budget.sigma, share_format, flags);
  } else {
    const auto most = static_cast<int>(std::min<Index>(l, 1 << 30));
    auto kept = static_cast<int>(std::clamp<Index>(budget.budget, 0, most));
    const bool moved =
        ImGui::SliderInt("##tokens", &kept, std::min(1, most), most, *share_format == 0 ? "" : "%d",
                         flags | ImGuiSliderFlags_Logarithmic | ImGuiSliderFlags_AlwaysClamp);
    if (moved) budget.budget = kept;
  }
  return !(budget == before);
}

void count_otherwise(KeptBudget& budget, Index l, Semantics semantics) {
  if (budget.sigma_budget)
    budget.budget = std::max<Index>(budget.tokens(l, semantics), 1);
  else
    budget.sigma = budget.ratio(l);
  budget.sigma_budget = !budget.sigma_budget;
}

float link_width() { return ImGui::GetTextLineHeight() * 1.2F; }

void link_toggle(bool& linked) {
  const Theme& t = theme();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = link_width(), height = ImGui::GetFrameHeight();
  if (ImGui::InvisibleButton("##link", {width, height})) linked = !linked;
  const ImU32 ink = ImGui::IsItemHovered() ? t.text : linked ? t.accent : t.faint;
  tip(linked
          ? "Goes with the budget and the window of the menu bar, as other panels do. Click to give it its "
            "own."
          : "Has its own budget and window. Click to go with those of the menu bar.");
  // Two rings, one in the other or apart.
  const float radius = height * 0.14F, apart = linked ? radius * 0.8F : radius * 1.5F;
  const ImVec2 middle = {at.x + width / 2, at.y + height / 2};
  for (const float side : {-1.0F, 1.0F})
    ImGui::GetWindowDrawList()->AddRect({middle.x + side * apart - radius * 1.4F, middle.y - radius},
                                        {middle.x + side * apart + radius * 1.4F, middle.y + radius}, ink,
                                        radius, 0, t.px(1.4F));
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
  text_beside(title_of(option));
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
