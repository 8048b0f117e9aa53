#include "viewer/panels/budgets/budget_table.hpp"

#include "analysis/options/option_text.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <imgui.h>
#include <limits>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

std::string tip_of(const std::string& method) {
  const auto known = kBudgetMethods.named(method);
  if (!known) return {};
  const BudgetMethodFacts& facts = kBudgetMethods[*known];
  return std::string(facts.meaning) +
         (facts.is_oracle ? ". It looks at the decoding steps that it is judged on" : "");
}

std::string excess_text(double excess) {
  return std::abs(excess) < 1 ? fmt::format("{:+.1f} %", 100 * excess)
                              : fmt::format("{:+.0f} %", 100 * excess);
}

/// Heads that the share is of: not those of layers that a run left out.
std::ptrdiff_t known_heads(const BudgetShare& share) {
  return std::count_if(share.loss.begin(), share.loss.end(), [](double loss) { return !std::isnan(loss); });
}

/// The smallest and the largest budget.
std::pair<Index, Index> ends_of(const BudgetShare& share) {
  std::pair<Index, Index> ends{share.budgets.empty() ? 0 : std::numeric_limits<Index>::max(), 0};
  for (std::size_t h = 0; h < share.budgets.size(); ++h)
    if (!std::isnan(share.loss[h]))
      ends = {std::min(ends.first, share.budgets[h]), std::max(ends.second, share.budgets[h])};
  return ends;
}

}  // namespace

std::string progress_of(const BudgetFigures& figures) {
  if (figures.missing() == 0) return {};
  return fmt::format("waits for {} more head{}", figures.missing(), figures.missing() == 1 ? "" : "s");
}

void draw_budget_table(const BudgetFigures& figures, const std::vector<std::string>& methods, Index selected,
                       std::string& chosen) {
  const Theme& t = theme();
  const BudgetShare* best = figures.find(std::string(name_of(BudgetMethod::optimal)));
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1.5F)});
  if (ImGui::BeginTable("methods", 5, ImGuiTableFlags_SizingStretchProp)) {
    ImGui::TableSetupColumn("method", ImGuiTableColumnFlags_WidthStretch, 1.9F);
    ImGui::TableSetupColumn("loss", ImGuiTableColumnFlags_WidthStretch, 0.85F);
    ImGui::TableSetupColumn("excess", ImGuiTableColumnFlags_WidthStretch, 1.1F);
    ImGui::TableSetupColumn("budgets", ImGuiTableColumnFlags_WidthStretch, 1.25F);
    ImGui::TableSetupColumn("here", ImGuiTableColumnFlags_WidthStretch, 0.7F);
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    dim_text("method");
    constexpr std::array<std::pair<const char*, const char*>, 4> kHeads = {{
        {"loss", "Total loss: the sum of all heads' eviction loss at their budgets"},
        {"excess", "Total loss above that of optimal"},
        {"budgets", "Tokens kept by the head of smallest and of largest budget"},
        {"here", "Tokens that the selected head keeps"},
    }};
    for (const auto& head : kHeads) {
      ImGui::TableNextColumn();
      right_aligned(head.first, t.dim);
      tip(head.second);
    }
    std::vector<double> losses;
    for (const std::string& name : methods)
      if (const BudgetShare* share = figures.find(name)) losses.push_back(share->total_loss);
    const NumberColumn loss(losses);
    for (std::size_t m = 0; m < methods.size(); ++m) {
      const std::string& name = methods[m];
      const BudgetShare* share = figures.find(name);
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      const float side = ImGui::GetTextLineHeight() * 0.6F;
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
      if (ImGui::Selectable(fmt::format("##{}", name).c_str(), chosen == name,
                            ImGuiSelectableFlags_SpanAllColumns))
        chosen = name;
      tip(tip_of(name).c_str());
      ImDrawList* list = ImGui::GetWindowDrawList();
      list->AddRectFilled({at.x, top}, {at.x + side, top + side}, t.series[m % t.series.size()], t.px(1.5F));
      list->AddText({at.x + side + t.px(5), at.y}, t.text, shown_name(name).c_str());
      ImGui::PushFont(mono_font());
      ImGui::TableNextColumn();
      if (share != nullptr) right_aligned(loss.text(share->total_loss), t.text);
      ImGui::TableNextColumn();
      if (share != nullptr && best != nullptr && best->total_loss > 0)
        right_aligned(share == best ? "0 %" : excess_text(share->total_loss / best->total_loss - 1), t.text);
      ImGui::TableNextColumn();
      if (share != nullptr) {
        const auto [least, most] = ends_of(*share);
        right_aligned(least == most ? fmt::format("{}", least) : fmt::format("{}\xE2\x80\x93{}", least, most),
                      t.text);
      }
      ImGui::TableNextColumn();
      if (share != nullptr && static_cast<std::size_t>(selected) < share->budgets.size())
        right_aligned(fmt::format("{}", share->budgets[selected]), t.text);
      ImGui::PopFont();
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
  const std::string waiting = progress_of(figures);
  if (!waiting.empty() || figures.pending()) {
    dim_text(waiting.empty() ? "divides the total" : waiting);
    busy_mark();
  } else if (const BudgetShare* share = figures.find(chosen)) {
    dim_text(fmt::format("{} keeps {}, {:.1f} a head", shown_name(chosen), counted(share->total, "token"),
                         static_cast<double>(share->total) /
                             static_cast<double>(std::max<std::ptrdiff_t>(known_heads(*share), 1))));
  }
  ImGui::PushTextWrapPos(0);
  for (const std::string& note : figures.notes()) dim_text(note);
  ImGui::PopTextWrapPos();
}

}  // namespace kvreplay::viewer
