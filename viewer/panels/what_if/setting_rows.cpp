#include "viewer/panels/what_if/setting_rows.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/what_if/what_if_controls.hpp"
#include "viewer/widgets/theme.hpp"

namespace kvreplay::viewer {

SettingRows::SettingRows(AppState& state)
    : run_(*state.run()),
      scores_(state.scores),
      settings_{&state.setting_a, &state.setting_b},
      as_counted_(state.settings()),
      own_{own_rule(as_counted_[0], run_, scores_), own_rule(as_counted_[1], run_, scores_)} {}

void SettingRows::header(bool& shown) const {
  ImGui::TableNextRow();
  for (std::size_t s = 0; s < 2; ++s) {
    ImGui::TableSetColumnIndex(static_cast<int>(s) + 1);
    const float side = ImGui::GetTextLineHeight() * 0.7F;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
    ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {at.x + side, top + side}, setting_colors()[s],
                                              theme().px(2));
    ImGui::PushID(static_cast<int>(s));
    const float width = ImGui::GetContentRegionAvail().x;
    if (ImGui::InvisibleButton("shown", {width, ImGui::GetTextLineHeight()})) shown = s == 1;
    tip("Click: the token map shows what this setting keeps. Held, X flips to the other.");
    ImGui::PopID();
    ImDrawList* list = ImGui::GetWindowDrawList();
    const float x = at.x + side + theme().px(6);
    const char* name = s == 0 ? "A" : "B";
    ImGui::PushFont(bold_font());
    list->AddText({x, at.y}, theme().text, name);
    const float from = x + ImGui::CalcTextSize(name).x + theme().px(7);
    ImGui::PopFont();
    if (shown != (s == 1)) continue;
    const auto fits = [&](const char* text) { return from + ImGui::CalcTextSize(text).x <= at.x + width; };
    if (const char* text = fits("in token map") ? "in token map" : "shown"; fits(text))
      list->AddText({from, at.y}, theme().dim, text);
  }
}

}  // namespace kvreplay::viewer
