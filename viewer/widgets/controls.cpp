#include "viewer/widgets/controls.hpp"

#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <imgui_internal.h>
#include <imgui_stdlib.h>

namespace kvreplay::viewer {
namespace {

void show_tip(std::string_view text) {
  if (text.empty()) return;
  ImGui::BeginTooltip();
  wrapped_text(text, theme().text, theme().px(320) - ImGui::GetCursorPosX());
  ImGui::EndTooltip();
}

/// Text typed in the open menu; only one menu can be open.
std::string& typed() {
  static std::string text;
  return text;
}

constexpr float kTreeWidth = 240;       // points
constexpr std::size_t kMostFound = 40;  // of a tree's entries

struct Widths {
  float plain = 0, name = 0;
  float gap() const { return plain > 0 && name > 0 ? theme().px(18) : 0; }
  float all() const { return plain + gap() + name; }
};

/// An entry without plain words stands where they would.
Widths widths_of(std::span<const Choice> choices, std::span<const std::size_t> found) {
  Widths widths;
  for (const std::size_t i : found) {
    const Choice& one = choices[i];
    const std::string& first = one.plain.empty() ? one.name : one.plain;
    widths.plain = std::max(widths.plain, ImGui::CalcTextSize(first.c_str()).x);
    if (!one.plain.empty()) widths.name = std::max(widths.name, mono_width(one.name));
  }
  return widths;
}

bool draw(const Choice& one, const Widths& widths, bool is_now, std::size_t number) {
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::PushID(static_cast<int>(number));
  const bool chosen = ImGui::Selectable(
      "##choice", is_now, one.enabled ? ImGuiSelectableFlags_None : ImGuiSelectableFlags_Disabled,
      {std::max(widths.all(), ImGui::GetContentRegionAvail().x), ImGui::GetTextLineHeight()});
  const bool over = ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled);
  ImGui::PopID();
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const std::string& first = one.plain.empty() ? one.name : one.plain;
  list->AddText(at, one.enabled ? t.text : t.faint, first.c_str());
  if (!one.plain.empty())
    list->AddText(mono_font(), mono_font()->FontSize, {at.x + widths.plain + widths.gap(), at.y},
                  one.enabled ? t.dim : t.faint, one.name.c_str());
  if (over) show_tip(one.tip);
  return chosen;
}

/// The field for what is sought, which has the keyboard; whether Enter was pressed.
bool filter_field(float width) {
  if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(std::max(width, ImGui::GetContentRegionAvail().x));
  const bool enter =
      ImGui::InputTextWithHint("##filter", "type to find", &typed(), ImGuiInputTextFlags_EnterReturnsTrue);
  // The field would take it for itself.
  if (ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape))) ImGui::CloseCurrentPopup();
  return enter;
}

/// Draws the `choices` that are `found`, under their headings.
std::optional<std::size_t> draw_found(std::span<const Choice> choices, std::span<const std::size_t> found,
                                      const std::string& now, const Widths& widths, bool go_to_now) {
  std::optional<std::size_t> chosen;
  std::string_view group;
  for (const std::size_t i : found) {
    const Choice& one = choices[i];
    if (one.group != group) {
      if (!group.empty()) ImGui::Dummy({0, theme().px(2)});
      group = one.group;
      dim_text(std::string(group));
    }
    const bool is_now = one.name == now;
    if (draw(one, widths, is_now, i)) chosen = i;
    if (is_now && go_to_now) ImGui::SetItemDefaultFocus();
  }
  return chosen;
}

}  // namespace

std::optional<std::size_t> choice_list(std::span<const Choice> choices, const std::string& now,
                                       const std::function<void()>& tree) {
  const bool filters = choices.size() > kMostUnfiltered;
  if (ImGui::IsWindowAppearing()) typed().clear();
  // A tree has its own width; its list, which may be long, that of what is found.
  const Widths widths = tree ? Widths{} : widths_of(choices, matching_choices(choices, {}));
  const bool enter = filters && filter_field(tree ? theme().px(kTreeWidth) : widths.all());
  if (tree && (!filters || typed().empty())) {
    tree();
    return std::nullopt;
  }
  std::vector<std::size_t> found = matching_choices(choices, filters ? typed() : std::string());
  if (found.empty()) dim_text("Nothing of that name.");
  const std::size_t more = tree && found.size() > kMostFound ? found.size() - kMostFound : 0;
  found.resize(found.size() - more);
  const std::optional<std::size_t> chosen =
      draw_found(choices, found, now, tree ? widths_of(choices, found) : widths, !filters);
  if (more > 0) dim_text(fmt::format("and {} more: type another word", more));
  if (!enter || chosen) return chosen;
  const auto first =
      std::find_if(found.begin(), found.end(), [&](std::size_t i) { return choices[i].enabled; });
  if (first == found.end()) return chosen;
  ImGui::CloseCurrentPopup();
  return *first;
}

std::optional<std::size_t> choice_combo(const char* id, const std::string& now,
                                        std::span<const Choice> choices, ImGuiComboFlags flags) {
  if (!begin_combo(id, now, flags | ImGuiComboFlags_HeightLargest)) return std::nullopt;
  const std::optional<std::size_t> chosen = choice_list(choices, now);
  ImGui::EndCombo();
  return chosen;
}

std::string about(const Choice& choice) {
  std::string text = choice.plain.empty() ? choice.name : choice.plain + "\n" + choice.name;
  if (!choice.tip.empty()) text += ": " + choice.tip;
  return text;
}

void hint(const std::string& text) {
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float wrap = std::min(room.x * 0.86F, theme().px(420));
  const ImVec2 extent = ImGui::CalcTextSize(text.c_str(), nullptr, false, wrap);
  const ImVec2 at = ImGui::GetCursorPos();
  ImGui::SetCursorPos(
      {at.x + std::max(0.0F, (room.x - extent.x) / 2), at.y + std::max(0.0F, (room.y - extent.y) * 0.4F)});
  wrapped_text(text, theme().dim, wrap);
}

void error_line(const std::string& text) { wrapped_text(text, theme().error); }

void wrapped_text(std::string_view text, ImU32 color, float width) {
  ImGui::PushTextWrapPos(width > 0 ? ImGui::GetCursorPosX() + width : 0);
  colored_text(text, color);
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

void right_aligned_number(const std::string& text, ImU32 color, bool bold) {
  ImGui::PushFont(mono_font());
  right_aligned(text, color);
  const ImVec2 at = ImGui::GetItemRectMin();
  if (bold) ImGui::GetWindowDrawList()->AddText({at.x - theme().px(0.7F), at.y}, color, text.c_str());
  ImGui::PopFont();
}

void mono_text(const std::string& text) {
  ImGui::PushFont(mono_font());
  ImGui::TextUnformatted(text.c_str());
  ImGui::PopFont();
}

HiddenDraw::HiddenDraw(bool out) {
  if (!out) return;
  ImGuiWindowTempData& dc = ImGui::GetCurrentWindow()->DC;
  cursor_ = Cursor{dc.CursorPos,   dc.CursorPosPrevLine, dc.CursorMaxPos,
                   dc.IdealMaxPos, dc.CurrLineSize,      dc.PrevLineSize};
  constexpr float kFar = 1e5F;  // above the window: nothing there is drawn
  ImGui::SetCursorScreenPos({dc.CursorPos.x, dc.CursorPos.y - kFar});
  dc.CursorPosPrevLine.y -= kFar;  // where what goes on with the line before would stand
}

HiddenDraw::~HiddenDraw() {
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

std::vector<std::string> wrapped(const std::string& text, float width, std::size_t most_lines) {
  std::vector<std::string> lines;
  const ImFont* font = ImGui::GetFont();
  const float scale = ImGui::GetFontSize() / font->FontSize;
  std::string rest = text;
  while (lines.size() + 1 < most_lines && ImGui::CalcTextSize(rest.c_str()).x > width) {
    const char* const begin = rest.data();
    const char* const end = begin + rest.size();
    const auto taken = static_cast<std::size_t>(
        font->CalcWordWrapPositionA(scale, begin, end, std::max(width, 1.0F)) - begin);
    if (taken == 0) break;
    std::string line = rest.substr(0, taken);
    rest.erase(0, std::min(rest.find_first_not_of(' ', taken), rest.size()));
    while (line.ends_with(' ')) line.pop_back();
    lines.push_back(std::move(line));
  }
  lines.push_back(elided(rest, width));
  return lines;
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
  if (ImGui::IsItemHovered()) show_tip(text);
}

StaleOverlay::StaleOverlay(bool over) : over_(over), from_(ImGui::GetCursorScreenPos()) {}

StaleOverlay::~StaleOverlay() {
  if (!over_) return;
  // A window of its own: what child windows hold is drawn above their parent's own lines.
  const ImVec2 cursor = ImGui::GetCursorScreenPos(), end = ImGui::GetWindowDrawList()->GetClipRectMax();
  const ImVec2 low = ImGui::GetWindowDrawList()->GetClipRectMin();
  const ImVec2 from{std::max(from_.x - theme().px(4), low.x), std::max(from_.y, low.y)};
  if (end.x <= from.x || end.y <= from.y) return;
  ImGui::SetCursorScreenPos(from);
  ImGui::BeginChild("veil", {end.x - from.x, end.y - from.y}, false,
                    ImGuiWindowFlags_NoInputs | ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoBackground);
  ImGui::GetWindowDrawList()->AddRectFilled(from, end, faded(theme().panel, 1 - kShows));
  ImGui::EndChild();
  ImGui::SetCursorScreenPos(cursor);
}

}  // namespace kvreplay::viewer
