#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/inspector/inspector_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <imgui.h>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kTextShown = 40;
constexpr float kLeastText = 76;  // points

}  // namespace

std::optional<Index> draw_largest(const InspectorFacts& facts, const std::optional<TokenLabels>& labels) {
  if (facts.largest.empty()) return std::nullopt;
  const Theme& t = theme();
  const float number = mono_width(kWidestNumber), position = mono_width("888888");
  struct Compared {
    std::string name;
    float width;
    std::vector<double> values;
  };
  std::vector<Compared> compared;
  for (const TokenMetric metric : {facts.comparison.score, facts.comparison.reference}) {
    const std::string name(name_of(metric));
    compared.push_back({name, std::max(number, ImGui::CalcTextSize(name.c_str()).x), {}});
    for (const Index token : facts.largest) compared.back().values.push_back(facts.value(metric, token));
  }
  const float room = ImGui::GetContentRegionAvail().x, gap = 2 * ImGui::GetStyle().CellPadding.x;
  const float both = position + compared[0].width + compared[1].width + t.px(kLeastText) + 4 * gap;
  if (room < both) compared.pop_back();

  std::optional<Index> clicked;
  if (!ImGui::BeginTable("largest", static_cast<int>(compared.size()) + 2, ImGuiTableFlags_NoSavedSettings))
    return clicked;
  ImGui::TableSetupColumn("token", ImGuiTableColumnFlags_WidthFixed, position);
  ImGui::TableSetupColumn("text", ImGuiTableColumnFlags_WidthStretch);
  for (const Compared& one : compared)
    ImGui::TableSetupColumn(one.name.c_str(), ImGuiTableColumnFlags_WidthFixed, one.width);
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  right_aligned("token", t.dim);
  ImGui::TableNextColumn();
  for (const Compared& one : compared) {
    ImGui::TableNextColumn();
    right_aligned(one.name, t.dim);
  }
  std::vector<NumberColumn> numbers;
  for (const Compared& one : compared) numbers.emplace_back(one.values);
  for (std::size_t i = 0; i < facts.largest.size(); ++i) {
    const Index token = facts.largest[i];
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    ImGui::PushFont(mono_font());
    const ImVec2 at = ImGui::GetCursorPos();
    ImGui::PushID(static_cast<int>(token));
    if (ImGui::Selectable("##token", facts.selection.token == token, ImGuiSelectableFlags_SpanAllColumns))
      clicked = token;
    ImGui::PopID();
    ImGui::SetCursorPos(at);
    right_aligned(std::to_string(token), t.text);
    ImGui::TableNextColumn();
    const std::string text = token_text(labels, token, kTextShown);
    ImGui::TextUnformatted(elided(text, ImGui::GetContentRegionAvail().x).c_str());
    for (std::size_t m = 0; m < compared.size(); ++m) {
      ImGui::TableNextColumn();
      right_aligned(numbers[m].text(compared[m].values[i]), t.text);
    }
    ImGui::PopFont();
  }
  ImGui::EndTable();
  return clicked;
}

}  // namespace kvreplay::viewer
