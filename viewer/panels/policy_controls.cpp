#include "viewer/panels/policy_controls.hpp"

#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cstring>
#include <imgui.h>

namespace kvreplay::viewer {

std::optional<std::size_t> combo(const char* id, const std::string& now, const std::vector<Choice>& choices) {
  std::optional<std::size_t> chosen;
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (!ImGui::BeginCombo(id, now.c_str(), ImGuiComboFlags_HeightLargest | ImGuiComboFlags_NoArrowButton))
    return chosen;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Choice& one = choices[i];
    const bool is_now = one.name == now;
    if (ImGui::Selectable(one.name.c_str(), is_now, one.enabled ? 0 : ImGuiSelectableFlags_Disabled))
      chosen = i;
    if (!one.tip.empty()) tip(one.tip);
    if (is_now) ImGui::SetItemDefaultFocus();
  }
  ImGui::EndCombo();
  return chosen;
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

}  // namespace kvreplay::viewer
