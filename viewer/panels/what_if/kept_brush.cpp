#include "viewer/panels/what_if/kept_brush.hpp"

#include "analysis/options/option_text.hpp"
#include "viewer/model/actions.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <imgui.h>
#include <optional>

namespace kvreplay::viewer {

void draw_kept_brush(AppState& state) {
  const Selection& s = state.selection();
  if (s.tokens.empty() && !s.token) return;
  dim_text(s.tokens.empty() ? fmt::format("Token {}:", *s.token)
                            : fmt::format("{}:", counted(std::ssize(s.tokens), "token")));
  const auto button = [&](ActionId id, const char* label, std::optional<PaintMark> mark) {
    flow(small_button_width(label));
    if (small_button(label)) state.paint(mark);
    tip(fmt::format("{} ({})", mark ? kPaintMarks[*mark].meaning : "The policy decides again",
                    action(id).shortcut.text()));
  };
  button(ActionId::keep_tokens, "Keep", PaintMark::keep);
  button(ActionId::pin_tokens, "Pin", PaintMark::pin);
  button(ActionId::evict_tokens, "Evict", PaintMark::evict);
  button(ActionId::leave_tokens, "Leave", std::nullopt);
  flow(check_width("this head only"));
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(3), theme().px(0.5F)});
  ImGui::Checkbox("this head only", &state.paint_here);
  ImGui::PopStyleVar();
  if (state.setting_a.painted.empty() && state.setting_b.painted.empty()) return;
  flow(small_button_width("Save kept set"));
  if (small_button("Save kept set")) state.wanted = ActionId::save_kept_set;
  tip("Writes what the setting in view keeps of all heads as .npy, and copies the command that measures it");
}

}  // namespace kvreplay::viewer
