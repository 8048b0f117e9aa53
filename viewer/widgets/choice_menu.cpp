#include "viewer/widgets/choice_menu.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <imgui_stdlib.h>

namespace kvreplay::viewer {
namespace {

/// Of the one menu that is open; only one can be.
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
void widen(Widths& widths, const Choice& one) {
  const std::string& first = one.plain.empty() ? one.name : one.plain;
  widths.plain = std::max(widths.plain, ImGui::CalcTextSize(first.c_str()).x);
  if (!one.plain.empty()) widths.name = std::max(widths.name, mono_width(one.name));
}

Widths widths_of(std::span<const Choice> choices) {
  Widths widths;
  for (const Choice& one : choices) widen(widths, one);
  return widths;
}

Widths widths_of(std::span<const Choice> choices, std::span<const std::size_t> found) {
  Widths widths;
  for (const std::size_t i : found) widen(widths, choices[i]);
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
  if (over && !one.tip.empty()) {
    ImGui::BeginTooltip();
    ImGui::PushTextWrapPos(t.px(320));
    ImGui::TextUnformatted(one.tip.c_str());
    ImGui::PopTextWrapPos();
    ImGui::EndTooltip();
  }
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

/// Those of `choices` that are `found`, under their headings.
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
  const Widths widths = tree ? Widths{} : widths_of(choices);
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

}  // namespace kvreplay::viewer
