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

struct MethodColumn {
  const char *name, *about;
};
/// The most telling first, which is also who stays where there is no room.
constexpr std::array<MethodColumn, 4> kMethodColumns = {{
    {"loss", "Total loss: the sum of all heads' eviction loss at their budgets"},
    {"excess", "Total loss above that of optimal"},
    {"here", "Tokens that the selected head keeps"},
    {"budgets", "Tokens kept by the head of smallest and of largest budget"},
}};

struct MethodRow {
  std::string name;
  std::array<std::string, kMethodColumns.size()> texts;  // empty where not known yet
};

std::vector<MethodRow> rows_of(const BudgetFigures& figures, const std::vector<std::string>& methods,
                               Index selected) {
  const BudgetShare* best = figures.find(std::string(name_of(BudgetMethod::optimal)));
  std::vector<double> losses;
  for (const std::string& name : methods)
    if (const BudgetShare* share = figures.find(name)) losses.push_back(share->total_loss);
  const NumberColumn loss(losses);
  std::vector<MethodRow> rows;
  for (const std::string& name : methods) {
    MethodRow& row = rows.emplace_back();
    row.name = shown_name(name);
    const BudgetShare* share = figures.find(name);
    if (share == nullptr) continue;
    row.texts[0] = loss.text(share->total_loss);
    if (best != nullptr && best->total_loss > 0)
      row.texts[1] = share == best ? "0 %" : excess_text(share->total_loss / best->total_loss - 1);
    if (static_cast<std::size_t>(selected) < share->budgets.size())
      row.texts[2] = std::to_string(share->budgets[selected]);
    const auto [least, most] = ends_of(*share);
    row.texts[3] = least == most ? std::to_string(least) : fmt::format("{}\xE2\x80\x93{}", least, most);
  }
  return rows;
}

float names_width(const std::vector<MethodRow>& rows) {
  float width = ImGui::CalcTextSize("method").x;
  for (const MethodRow& row : rows)
    width = std::max(
        width, ImGui::GetTextLineHeight() * 0.6F + theme().px(5) + ImGui::CalcTextSize(row.name.c_str()).x);
  return width;
}

/// Those that stand whole beside the names, all equally wide.
std::vector<std::size_t> columns_with_room(const std::vector<MethodRow>& rows) {
  const float padding = 2 * ImGui::GetStyle().CellPadding.x;
  const float room = ImGui::GetContentRegionAvail().x - names_width(rows) - padding;
  std::vector<std::size_t> columns;
  float widest = 0;
  for (std::size_t c = 0; c < kMethodColumns.size(); ++c) {
    float width = std::max(widest, ImGui::CalcTextSize(kMethodColumns[c].name).x);
    for (const MethodRow& row : rows) width = std::max(width, mono_width(row.texts[c]));
    if (c > 0 && static_cast<float>(columns.size() + 1) * (width + padding) > room) break;
    widest = width;
    columns.push_back(c);
  }
  return columns;
}

}  // namespace

std::string progress_of(const BudgetFigures& figures) {
  if (figures.missing() == 0) return {};
  return fmt::format("waits for {} more head{}", figures.missing(), figures.missing() == 1 ? "" : "s");
}

void draw_budget_table(const BudgetFigures& figures, const std::vector<std::string>& methods, Index selected,
                       std::string& chosen) {
  const Theme& t = theme();
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1.5F)});
  const std::vector<MethodRow> rows = rows_of(figures, methods, selected);
  const std::vector<std::size_t> shown = columns_with_room(rows);
  if (ImGui::BeginTable("methods", static_cast<int>(1 + shown.size()), ImGuiTableFlags_SizingStretchSame)) {
    ImGui::TableSetupColumn("method", ImGuiTableColumnFlags_WidthFixed, names_width(rows));
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    dim_text("method");
    for (const std::size_t c : shown) {
      ImGui::TableNextColumn();
      right_aligned(kMethodColumns[c].name, t.dim);
      tip(kMethodColumns[c].about);
    }
    for (std::size_t m = 0; m < rows.size(); ++m) {
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      const float side = ImGui::GetTextLineHeight() * 0.6F;
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
      if (ImGui::Selectable(fmt::format("##{}", methods[m]).c_str(), chosen == methods[m],
                            ImGuiSelectableFlags_SpanAllColumns))
        chosen = methods[m];
      tip(tip_of(methods[m]));
      ImDrawList* list = ImGui::GetWindowDrawList();
      list->AddRectFilled({at.x, top}, {at.x + side, top + side}, t.series[m % t.series.size()], t.px(1.5F));
      list->AddText({at.x + side + t.px(5), at.y}, t.text, rows[m].name.c_str());
      ImGui::PushFont(mono_font());
      for (const std::size_t c : shown) {
        ImGui::TableNextColumn();
        right_aligned(rows[m].texts[c], t.text);
      }
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
    ImGui::PushTextWrapPos(0);
    dim_text(fmt::format("{} keeps {}, {:.1f} a head", shown_name(chosen), counted(share->total, "token"),
                         static_cast<double>(share->total) /
                             static_cast<double>(std::max<std::ptrdiff_t>(known_heads(*share), 1))));
    ImGui::PopTextWrapPos();
  }
  ImGui::PushTextWrapPos(0);
  for (const std::string& note : figures.notes()) dim_text(note);
  ImGui::PopTextWrapPos();
}

}  // namespace kvreplay::viewer
