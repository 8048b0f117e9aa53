#include "viewer/panels/no_dump.hpp"

#include "viewer/widgets/controls.hpp"

namespace kvreplay::viewer {

void hint_no_dump(AppState& state, const std::string& text) {
  hint(text);
  const std::string title(action(ActionId::locate_dump).title);
  const float width = ImGui::CalcTextSize(title.c_str()).x + 2 * ImGui::GetStyle().FramePadding.x;
  const float room = ImGui::GetContentRegionAvail().x;
  ImGui::SetCursorPosX(ImGui::GetCursorPosX() + (room - width) / 2);
  if (ImGui::Button(title.c_str())) state.wanted = ActionId::locate_dump;
}

}  // namespace kvreplay::viewer
