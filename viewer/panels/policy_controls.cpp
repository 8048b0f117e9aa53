#include "viewer/panels/policy_controls.hpp"

#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cstring>
#include <imgui.h>

namespace kvreplay::viewer {

const char* meaning_of(Base base) {
  switch (base) {
    case Base::streaming:
      return "StreamingLLM: the first 4 and the most recent tokens";
    case Base::h2o:
      return "H2O: attention summed over all rows; the recent half is pinned";
    case Base::tova:
      return "TOVA: attention of the last row";
    case Base::snapkv:
      return "SnapKV: attention of the pinned window, pooled";
    case Base::knorm:
      return "Small keys are kept: -||k||";
    case Base::keydiff:
      return "KeyDiff: keys unlike the mean key are kept";
    case Base::expected_attention:
      return "Expected Attention: attention under the window's mean query";
    case Base::oracle:
      return "Reference: ranks by oracle_importance on the decoding steps";
    case Base::oracle_exact:
      return "Reference: ranks by oracle_future, the exact error of each single eviction";
    case Base::greedy_exact:
      return "Reference: evicts one token at a time, always the one of least exact error. Takes seconds.";
    case Base::exchange:
      return "Reference: swaps kept and evicted tokens while the exact error falls. Takes long.";
  }
  return nullptr;
}

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
    if (one.tip != nullptr) tip(one.tip);
    if (is_now) ImGui::SetItemDefaultFocus();
  }
  ImGui::EndCombo();
  return chosen;
}

bool edit_optional(const char* id, std::optional<Index>& value, const std::string& own, Index least,
                   Index most) {
  char text[24] = "";
  if (value) fmt::format_to_n(text, sizeof text - 1, "{}", *value).out[0] = 0;
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (!ImGui::InputTextWithHint(id, own.c_str(), text, sizeof text, ImGuiInputTextFlags_CharsDecimal))
    return false;
  Index typed = 0;
  const auto read = std::from_chars(text, text + std::strlen(text), typed);
  const std::optional<Index> before = value;
  if (text[0] == 0)
    value.reset();
  else if (read.ec == std::errc())
    value = std::clamp(typed, least, most);
  return value != before;
}

}  // namespace kvreplay::viewer
