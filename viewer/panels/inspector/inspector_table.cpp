#include "analysis/options/option.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/actions.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/inspector/inspector_parts.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <imgui.h>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kTextShown = 40;
constexpr float kLeastTokenText = 76;  // points

constexpr float kLeastNames = 76, kNameGap = 6;  // points

/// One line of the table: a metric, an entry of it, or both.
struct Line {
  std::optional<TokenMetric> metric;
  std::optional<EntryTerm> entry;
  std::string_view name() const { return metric ? name_of(*metric) : name_of(*entry); }
  std::string_view plain() const { return metric ? kTokenMetrics[*metric].plain : kEntries[*entry].plain; }
};

std::vector<Line> lines_of(const InspectorFacts& facts) {
  std::vector<Line> lines;
  if (!facts.columns.empty()) lines.push_back({{}, EntryTerm::logit});
  for (const TokenMetric metric : kTokenMetrics.all()) {
    Line line{metric, {}};
    for (const EntryTerm entry : kEntries.all())
      if (kEntries[entry].metric == metric) line.entry = entry;
    const bool summed = facts.summary && facts.summary->metrics.contains(metric);
    if (summed || (line.entry && !facts.columns.empty())) lines.push_back(line);
  }
  return lines;
}

/// A column of numbers, or of texts where a line has none.
struct TableColumn {
  std::vector<std::string> head;  // lines
  std::string tip;
  std::function<double(const Line&)> number = {};  // NaN: none
  std::function<std::string(const Line&)> text = {};
  float width = 0;  // pixels
  std::optional<std::size_t> unpin = {};
  NumberColumn numbers = {};

  void read(const std::vector<Line>& lines) {
    std::vector<double> values;
    for (const Line& line : lines)
      if (number) values.push_back(number(line));
    numbers = NumberColumn(values, false);
  }
  std::string shown(const Line& line) const {
    const double value = number ? number(line) : kNone;
    return !std::isnan(value) ? numbers.text(value) : text ? text(line) : std::string();
  }
};

template <class F>
const F* figure_of(const std::vector<F>& figures, const Line& line) {
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const F& figure) {
    return line.metric && figure.metric == *line.metric;
  });
  return found == figures.end() ? nullptr : &*found;
}

void add_token_columns(const InspectorFacts& facts, std::vector<TableColumn>& columns) {
  if (!facts.token.empty()) {
    columns.push_back({{fmt::format("token {}", *facts.selection.token), "value"},
                       "The token's metrics, summed over the queries and query heads that they look at",
                       [&facts](const Line& line) {
                         const TokenFigure* figure = figure_of(facts.token, line);
                         return figure != nullptr ? figure->value : kNone;
                       }});
    columns.push_back({{"rank", fmt::format("of {}", facts.summary->l)},
                       "Its place among the candidates, the largest first",
                       {},
                       [&facts](const Line& line) {
                         const TokenFigure* figure = figure_of(facts.token, line);
                         return figure != nullptr ? std::to_string(figure->rank) : std::string();
                       }});
  }
  if (facts.tokens.empty()) return;
  columns.push_back({{counted(std::ssize(facts.selection.tokens), "token"), "sum"},
                     "The sum over the tokens that are chosen together",
                     [&facts](const Line& line) {
                       const SelectionFigure* figure = figure_of(facts.tokens, line);
                       return figure != nullptr ? figure->sum : kNone;
                     }});
  columns.push_back({{"of all", "share"},
                     "That sum as a share of the sum over all candidates",
                     {},
                     [&facts](const Line& line) {
                       const SelectionFigure* figure = figure_of(facts.tokens, line);
                       const bool known = figure != nullptr && !std::isnan(figure->share);
                       return known ? percent_text(figure->share) : std::string();
                     }});
}

double cell_number(const InspectorFacts::Column& column, const Line& line) {
  const bool there = line.entry && column.entries && !column.entries->hidden;
  return there ? (*column.entries)[*line.entry] : kNone;
}

std::string cell_text(const InspectorFacts::Column& column, const Line& line) {
  if (!line.entry) return {};
  if (column.entries) return column.entries->hidden ? "hidden" : number_text(kNone);
  return column.why.empty() ? "\xE2\x80\xA6" : "none";
}

/// The selected cell's columns, or the pinned ones'.
void add_cell_columns(const InspectorFacts& facts, bool pinned, std::vector<TableColumn>& columns) {
  for (const InspectorFacts::Column& column : facts.columns) {
    if (column.pin.has_value() != pinned) continue;
    const Cell& cell = column.cell;
    const std::string head = fmt::format("L{} H{}{}", column.layer_number, cell.kv_head,
                                         cell.query_head ? fmt::format(" q{}", *cell.query_head) : "");
    TableColumn shown;
    shown.head = {column.pin ? head : std::string("cell"), fmt::format("{}, {}", cell.row, cell.token)};
    if (facts.several_runs) shown.head.push_back(visible_text(column.run, 12));
    shown.tip = fmt::format("{}\nlayer {}, KV head {}, {}\nrow {}, token {}, in float64", column.run,
                            column.layer_number, cell.kv_head,
                            cell.query_head ? fmt::format("query head {} of the group", *cell.query_head)
                                            : "summed over its query heads (logit: mean)",
                            cell.row, cell.token);
    if (!column.why.empty()) shown.tip += fmt::format("\n{}", column.why);
    shown.number = [&column](const Line& line) { return cell_number(column, line); };
    shown.text = [&column](const Line& line) { return cell_text(column, line); };
    // A pin is in all runs: one button.
    const bool first = &column == &facts.columns.front() || (&column - 1)->pin != column.pin;
    if (first) shown.unpin = column.pin;
    columns.push_back(std::move(shown));
  }
}

/// The lines of a column's head; true where its pin is to go.
bool draw_head(const TableColumn& column) {
  const Theme& t = theme();
  bool pressed = false, over = false;
  ImGui::BeginGroup();
  if (column.unpin) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float side = ImGui::GetTextLineHeight();
    pressed = ImGui::InvisibleButton("unpin", {side * 0.8F, side});
    over = ImGui::IsItemHovered();
    tip("Unpin");
    ImGui::GetWindowDrawList()->AddText(at, over ? t.error : t.faint, "\xC3\x97");
    ImGui::SameLine(0, 0);
  }
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {0, 0});
  for (const std::string& line : column.head) right_aligned(line, t.dim);
  ImGui::PopStyleVar();
  ImGui::EndGroup();
  if (!over) tip(column.tip.c_str());
  return pressed;
}

/// The plain name over all columns, in a row of its own.
void draw_plain_name(const std::string& plain, float width) {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float height = ImGui::GetTextLineHeight();
  ImGui::Dummy({1, height});
  ImGui::PushClipRect(at, {at.x + width, at.y + height + theme().px(2)}, false);
  ImGui::GetWindowDrawList()->AddText(at, theme().text, elided(plain, width).c_str());
  ImGui::PopClipRect();
}

/// Layout of the lines' names.
struct NameColumn {
  bool beside = true;  ///< plain and short name in one row, else the plain one above all columns
  float width = 0;     ///< pixels
};

void draw_line(const InspectorFacts& facts, const Line& line, const std::vector<TableColumn>& columns,
               const NameColumn& names, float table_width) {
  const Theme& t = theme();
  const bool compared =
      line.metric && (*line.metric == facts.comparison.score || *line.metric == facts.comparison.reference);
  const std::string plain(line.plain()), name(line.name());
  if (!names.beside) draw_plain_name(plain, table_width);
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const float room = ImGui::GetContentRegionAvail().x;
  ImGui::BeginGroup();
  if (names.beside) {
    ImGui::TextUnformatted(plain.c_str());
    ImGui::SameLine(0, t.px(kNameGap));
  }
  colored_text(names.beside ? name : elided(name, room), compared ? t.text : t.dim);
  ImGui::EndGroup();
  tip(fmt::format("{}\n{}: {}", plain, name,
                  line.metric ? kTokenMetrics[*line.metric].meaning : kEntries[EntryTerm::logit].meaning));
  if (compared) ImGui::TableSetBgColor(ImGuiTableBgTarget_RowBg0, faded(t.raised, 0.7F));
  ImGui::PushFont(mono_font());
  for (const TableColumn& column : columns) {
    ImGui::TableNextColumn();
    const std::string text = column.shown(line);
    right_aligned(text, text == "hidden" || text == "none" ? t.faint : t.text);
  }
  ImGui::PopFont();
}

/// Both names beside each other where `room` has that, else short ones alone, cut short before a column
/// drops; numbers never are.
NameColumn name_column(const std::vector<Line>& lines, float room) {
  const Theme& t = theme();
  float both = 0, alone = 0;
  for (const Line& line : lines) {
    const float name = ImGui::CalcTextSize(std::string(line.name()).c_str()).x;
    alone = std::max(alone, name);
    both =
        std::max(both, name + ImGui::CalcTextSize(std::string(line.plain()).c_str()).x + t.px(kNameGap + 1));
  }
  if (both <= room) return {true, both};
  return {false, std::max(std::min(alone, room), std::min(alone, t.px(kLeastNames)))};
}

/// Leaves the columns that fit, and gives the others.
std::vector<TableColumn> take_dropped(std::vector<TableColumn>& columns,
                                      const std::vector<std::size_t>& fitting) {
  std::vector<TableColumn> kept, dropped;
  for (std::size_t i = 0; i < columns.size(); ++i)
    (std::binary_search(fitting.begin(), fitting.end(), i) ? kept : dropped).push_back(std::move(columns[i]));
  columns = std::move(kept);
  return dropped;
}

void note_dropped(const std::vector<TableColumn>& dropped) {
  if (dropped.empty()) return;
  dim_text(fmt::format("{} column{} more in a wider panel", dropped.size(), dropped.size() == 1 ? "" : "s"));
  std::string heads;
  for (const TableColumn& column : dropped) heads += fmt::format("{}\n", fmt::join(column.head, " "));
  tip(heads +
      fmt::format("{}: {}", action(ActionId::maximise).shortcut.text(), action(ActionId::maximise).title));
}

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
  const float both = position + compared[0].width + compared[1].width + t.px(kLeastTokenText) + 4 * gap;
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

std::optional<std::size_t> draw_inspector_table(const InspectorFacts& facts) {
  const Theme& t = theme();
  const std::vector<Line> lines = lines_of(facts);
  std::vector<TableColumn> columns;
  add_cell_columns(facts, false, columns);
  add_token_columns(facts, columns);
  add_cell_columns(facts, true, columns);
  if (columns.empty() || lines.empty()) return std::nullopt;

  const ImVec2 padding = {t.px(4), t.px(1)};
  std::vector<float> widths;
  for (TableColumn& column : columns) {
    column.read(lines);
    for (const std::string& head : column.head)
      column.width = std::max(column.width, ImGui::CalcTextSize(head.c_str()).x);
    if (column.unpin)
      column.width = std::max(column.width, ImGui::CalcTextSize(column.head[0].c_str()).x + t.px(14));
    ImGui::PushFont(mono_font());
    for (const Line& line : lines)
      column.width = std::max(column.width, ImGui::CalcTextSize(column.shown(line).c_str()).x);
    ImGui::PopFont();
    column.width += t.px(1);
    widths.push_back(column.width + 2 * padding.x);
  }
  const float width = ImGui::GetContentRegionAvail().x, room = width - 2 * padding.x;
  const NameColumn names = name_column(lines, room - std::accumulate(widths.begin(), widths.end(), 0.0F));
  const std::vector<std::size_t> fitting = columns_that_fit(widths, room - names.width);
  const std::vector<TableColumn> dropped = take_dropped(columns, fitting);

  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, padding);
  std::optional<std::size_t> unpinned;
  if (ImGui::BeginTable("cell", static_cast<int>(columns.size()) + 1,
                        ImGuiTableFlags_NoSavedSettings | ImGuiTableFlags_SizingFixedFit)) {
    ImGui::TableSetupColumn("name", ImGuiTableColumnFlags_WidthFixed, names.width);
    for (const TableColumn& column : columns)
      ImGui::TableSetupColumn("", ImGuiTableColumnFlags_WidthFixed, column.width);
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      ImGui::TableNextColumn();
      ImGui::PushID(static_cast<int>(i));
      if (draw_head(columns[i])) unpinned = columns[i].unpin;
      ImGui::PopID();
    }
    ImGui::TableNextRow(0, t.px(3));
    for (const Line& line : lines) draw_line(facts, line, columns, names, width);
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
  note_dropped(dropped);
  return unpinned;
}

}  // namespace kvreplay::viewer
