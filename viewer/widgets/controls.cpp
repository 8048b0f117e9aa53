#include "viewer/widgets/controls.hpp"

#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/choice_menu.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <imgui_internal.h>

namespace kvreplay::viewer {
void hint(const std::string& text) {
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float wrap = std::min(room.x * 0.86F, theme().px(420));
  const ImVec2 extent = ImGui::CalcTextSize(text.c_str(), nullptr, false, wrap);
  const ImVec2 at = ImGui::GetCursorPos();
  ImGui::SetCursorPos(
      {at.x + std::max(0.0F, (room.x - extent.x) / 2), at.y + std::max(0.0F, (room.y - extent.y) * 0.4F)});
  ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + wrap);
  colored_text(text, theme().dim);
  ImGui::PopTextWrapPos();
}

void error_line(const std::string& text) {
  ImGui::PushTextWrapPos(0);
  colored_text(text, theme().error);
  ImGui::PopTextWrapPos();
}

void colored_text(std::string_view text, ImU32 color) {
  ImGui::PushStyleColor(ImGuiCol_Text, color);
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopStyleColor();
}

void right_aligned(const std::string& text, ImU32 color, float width) {
  const float extent = ImGui::CalcTextSize(text.c_str()).x;
  ImGui::SetCursorPosX(ImGui::GetCursorPosX() + std::max(0.0F, width - extent));
  colored_text(text, color);
}
void right_aligned(const std::string& text, ImU32 color) {
  right_aligned(text, color, ImGui::GetContentRegionAvail().x);
}

void mono_text(const std::string& text) {
  ImGui::PushFont(mono_font());
  ImGui::TextUnformatted(text.c_str());
  ImGui::PopFont();
}

OutOfSight::OutOfSight(bool out) {
  if (!out) return;
  ImGuiWindowTempData& dc = ImGui::GetCurrentWindow()->DC;
  cursor_ = Cursor{dc.CursorPos,   dc.CursorPosPrevLine, dc.CursorMaxPos,
                   dc.IdealMaxPos, dc.CurrLineSize,      dc.PrevLineSize};
  constexpr float kFar = 1e5F;  // above the window: nothing there is drawn
  ImGui::SetCursorScreenPos({dc.CursorPos.x, dc.CursorPos.y - kFar});
  dc.CursorPosPrevLine.y -= kFar;  // where what goes on with the line before would stand
}

OutOfSight::~OutOfSight() {
  if (!cursor_) return;
  ImGuiWindowTempData& dc = ImGui::GetCurrentWindow()->DC;
  dc.CursorPos = cursor_->now;
  dc.CursorPosPrevLine = cursor_->previous_line;
  dc.CursorMaxPos = cursor_->most;
  dc.IdealMaxPos = cursor_->ideal_most;
  dc.CurrLineSize = cursor_->line;
  dc.PrevLineSize = cursor_->previous;
}

void dim_text(const std::string& text) { colored_text(text, theme().dim); }

std::string elided(const std::string& text, float width) {
  if (ImGui::CalcTextSize(text.c_str()).x <= width) return text;
  const auto beginning = [&](std::size_t bytes) {
    while (bytes > 0 && continues_character(text[bytes])) --bytes;
    return text.substr(0, bytes) + "\xE2\x80\xA6";
  };
  std::size_t fits = 0, beyond = text.size();  // names may have any length: by halves, not one by one
  while (beyond - fits > 1) {
    const std::size_t middle = fits + (beyond - fits) / 2;
    (ImGui::CalcTextSize(beginning(middle).c_str()).x <= width ? fits : beyond) = middle;
  }
  return beginning(fits);
}

void elided_text(const std::string& text, ImU32 color, float width) {
  const std::string shown = elided(text, width);
  colored_text(shown, color);
  if (shown != text) tip(text);
}
void elided_text(const std::string& text, ImU32 color) {
  elided_text(text, color, ImGui::GetContentRegionAvail().x);
}

void flow(float width) {
  const float right = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x;
  if (ImGui::GetItemRectMax().x + ImGui::GetStyle().ItemSpacing.x + width <= right) ImGui::SameLine();
}

float check_width(const char* label) {
  return ImGui::GetFrameHeight() + ImGui::GetStyle().ItemInnerSpacing.x + ImGui::CalcTextSize(label).x;
}

bool small_button(const char* label) {
  // Letters reach below their line by a pixel at some sizes.
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {ImGui::GetStyle().FramePadding.x, theme().px(1)});
  const bool pressed = ImGui::Button(label);
  ImGui::PopStyleVar();
  return pressed;
}
float small_button_width(const char* label) {
  return ImGui::CalcTextSize(label).x + 2 * ImGui::GetStyle().FramePadding.x;
}

void busy_mark() {
  ImGui::SameLine();
  const float size = ImGui::GetTextLineHeight();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float middle = at.y + ImGui::GetTextLineHeight() * 0.5F + (ImGui::GetFrameHeight() - size) * 0.5F;
  for (int i = 0; i < 3; ++i)
    ImGui::GetWindowDrawList()->AddCircleFilled(
        {at.x + size * (0.25F + 0.4F * static_cast<float>(i)), middle}, size * 0.11F, theme().accent);
  ImGui::Dummy({size * 1.3F, size});
  tip("Being computed");
}

bool begin_combo(const char* id, const std::string& now, ImGuiComboFlags flags) {
  const float arrow = (flags & ImGuiComboFlags_NoArrowButton) != 0 ? 0.0F : ImGui::GetFrameHeight();
  const float room = ImGui::CalcItemWidth() - arrow - 2 * ImGui::GetStyle().FramePadding.x;
  return ImGui::BeginCombo(id, elided(now, room).c_str(), flags);
}

bool choose(const char* label, std::span<const Choice> choices, std::size_t& chosen, float width) {
  ImGui::SetNextItemWidth(theme().px(width));
  const std::string now = chosen < choices.size() ? choices[chosen].name : std::string();
  const auto picked = choice_combo(label, now, choices);
  if (!picked || *picked == chosen) return false;
  chosen = *picked;
  return true;
}

bool choose(const char* label, std::span<const std::string_view> names, std::size_t& chosen, float width) {
  std::vector<Choice> choices;
  for (const std::string_view name : names) choices.push_back({.name = std::string(name)});
  return choose(label, choices, chosen, width);
}

bool segments(const char* id, std::span<const std::string_view> names, std::size_t& chosen) {
  bool changed = false;
  ImGui::PushID(id);
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {theme().px(1), ImGui::GetStyle().ItemSpacing.y});
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) ImGui::SameLine();
    const bool on = i == chosen;
    if (on) ImGui::PushStyleColor(ImGuiCol_Button, theme().accent_soft);
    ImGui::PushID(static_cast<int>(i));
    if (ImGui::Button(std::string(names[i]).c_str()) && !on) {
      chosen = i;
      changed = true;
    }
    ImGui::PopID();
    if (on) ImGui::PopStyleColor();
  }
  ImGui::PopStyleVar();
  ImGui::PopID();
  return changed;
}

bool fade_evicted(bool& fade) {
  const bool changed = ImGui::Checkbox("Fade evicted", &fade);
  tip("In the token map, fades the tokens that the setting of What if evicts from the head");
  return changed;
}

void heading(const char* text) {
  ImGui::PushFont(bold_font());
  ImGui::TextUnformatted(text);
  ImGui::PopFont();
}

void figure(const char* name, const std::string& value) {
  dim_text(name);
  ImGui::SameLine();
  mono_text(value);
}

float mono_width(const std::string& text) {
  ImGui::PushFont(mono_font());
  const float width = ImGui::CalcTextSize(text.c_str()).x;
  ImGui::PopFont();
  return width;
}

float figure_width(const char* name, const std::string& value) {
  return ImGui::CalcTextSize(name).x + ImGui::GetStyle().ItemSpacing.x + mono_width(value);
}

void tip(std::string_view text) {
  if (text.empty() || !ImGui::IsItemHovered()) return;
  ImGui::BeginTooltip();
  ImGui::PushTextWrapPos(theme().px(320));
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopTextWrapPos();
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
