#include "analysis/options/option.hpp"
#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/actions.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/inspector_facts.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <imgui.h>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kTextShown = 40;
constexpr float kLeastTokenText = 76;  // points

/// The chosen tokens that hold most of the score; a click selects. Returns the position.
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

constexpr float kLeastNames = 76;  // points

/// One line of the table: a metric, an entry of it, or both.
struct Line {
  std::optional<TokenMetric> metric;
  std::optional<EntryTerm> entry;
  std::string_view name() const { return metric ? name_of(*metric) : name_of(*entry); }
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
                       "The token's metrics, summed over the rows and query heads that they look at",
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

void draw_line(const InspectorFacts& facts, const Line& line, const std::vector<TableColumn>& columns) {
  const Theme& t = theme();
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const bool compared =
      line.metric && (*line.metric == facts.comparison.score || *line.metric == facts.comparison.reference);
  const std::string name(line.name());
  colored_text(elided(name, ImGui::GetContentRegionAvail().x), compared ? t.text : t.dim);
  tip(line.metric ? kTokenMetrics[*line.metric].meaning : kEntries[EntryTerm::logit].meaning);
  if (compared) ImGui::TableSetBgColor(ImGuiTableBgTarget_RowBg0, faded(t.raised, 0.7F));
  ImGui::PushFont(mono_font());
  for (const TableColumn& column : columns) {
    ImGui::TableNextColumn();
    const std::string text = column.shown(line);
    right_aligned(text, text == "hidden" || text == "none" ? t.faint : t.text);
  }
  ImGui::PopFont();
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

/// Metrics by row: the selected token's, the chosen tokens', and the entries of cells, a column a cell and
/// run. Returns the number of the pin whose button was pressed.
std::optional<std::size_t> draw_inspector_table(const InspectorFacts& facts) {
  const Theme& t = theme();
  const std::vector<Line> lines = lines_of(facts);
  std::vector<TableColumn> columns;
  add_cell_columns(facts, false, columns);
  add_token_columns(facts, columns);
  add_cell_columns(facts, true, columns);
  if (columns.empty() || lines.empty()) return std::nullopt;

  const ImVec2 padding = {t.px(4), t.px(1)};
  float names = 0;
  for (const Line& line : lines)
    names = std::max(names, ImGui::CalcTextSize(std::string(line.name()).c_str()).x);
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
  // Names are cut short before a column drops; numbers never are.
  const float room = ImGui::GetContentRegionAvail().x - 2 * padding.x;
  const float needed = std::accumulate(widths.begin(), widths.end(), 0.0F);
  names = std::max(std::min(names, room - needed), std::min(names, t.px(kLeastNames)));
  const std::vector<std::size_t> fitting = columns_that_fit(widths, room - names);
  const std::vector<TableColumn> dropped = take_dropped(columns, fitting);

  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, padding);
  std::optional<std::size_t> unpinned;
  if (ImGui::BeginTable("cell", static_cast<int>(columns.size()) + 1,
                        ImGuiTableFlags_NoSavedSettings | ImGuiTableFlags_SizingFixedFit)) {
    ImGui::TableSetupColumn("name", ImGuiTableColumnFlags_WidthFixed, names);
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
    for (const Line& line : lines) draw_line(facts, line, columns);
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
  note_dropped(dropped);
  return unpinned;
}

/// The numbers behind the selected cell, token, tokens and channels, and those of pinned cells.
class InspectorPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override { return "The selected cell, exactly"; }
  std::vector<std::string> figure_settings(PanelContext& context) const override {
    return settings_lines(context.state);
  }
  std::string csv(PanelContext& context) const override;

 private:
  void draw_buttons(PanelContext& context) const;
  void draw_position(const Run& run, const char* name, Index position, float taken = 0) const;
  void draw_notes() const;
  void draw_missing() const;

  InspectorFacts facts_;
};

constexpr Index kNeighbours = 5;
constexpr float kLeastPosition = 150;  // points
constexpr std::size_t kNeighbourLength = 14, kTokenLength = 40;

/// Position and text of a token among those around it; `taken` of the line's pixels are another's.
void InspectorPanel::draw_position(const Run& run, const char* name, Index position, float taken) const {
  const Theme& t = theme();
  dim_text(name);
  ImGui::SameLine(t.px(42));
  ImGui::PushFont(mono_font());
  const std::string digits = std::to_string(std::max<Index>(run.shape().T - 1, 0));
  ImGui::TextUnformatted(fmt::format("{:>{}}", position, digits.size()).c_str());
  std::string before, after;
  for (Index p = std::max<Index>(position - kNeighbours, 0); p < position; ++p)
    before += token_text(run.labels(), p, kNeighbourLength);
  for (Index p = position + 1; p <= std::min(position + kNeighbours, run.shape().T - 1); ++p)
    after += token_text(run.labels(), p, kNeighbourLength);
  std::string itself = token_text(run.labels(), position, kTokenLength);
  if (!itself.empty()) {
    // The token stays in view; its left neighbours give way first.
    ImGui::SameLine(0, t.px(12));
    const float room = ImGui::GetContentRegionAvail().x - taken;
    const float line_end = ImGui::GetCursorScreenPos().x + room;
    itself = elided(itself, room - t.px(8));
    const auto width = [](const std::string& text) { return ImGui::CalcTextSize(text.c_str()).x; };
    const float own = width(itself) + t.px(8);
    while (!before.empty() && width(before) > std::max(0.0F, (room - own) / 2)) {
      std::size_t first = 1;
      while (first < before.size() && continues_character(before[first])) ++first;
      before.erase(0, first);
    }
    dim_text(before);
    ImGui::SameLine(0, t.px(4));
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImGui::GetWindowDrawList()->AddRectFilled(
        {at.x - t.px(2), at.y}, {at.x + width(itself) + t.px(2), at.y + ImGui::GetTextLineHeight()},
        t.accent_soft, t.px(2));
    ImGui::TextUnformatted(itself.c_str());
    const float rest = line_end - ImGui::GetItemRectMax().x - t.px(4);
    if (rest > width("\xE2\x80\xA6")) {
      ImGui::SameLine(0, t.px(4));
      dim_text(elided(after, rest));
    }
  }
  ImGui::PopFont();
}

void InspectorPanel::draw_buttons(PanelContext& context) const {
  const Selection& s = facts_.selection;
  const bool cell = s.row && s.token;
  ImGui::BeginDisabled(!cell);
  if (small_button("Pin")) context.state.wanted = ActionId::pin_selection;
  ImGui::EndDisabled();
  tip(fmt::format("Keep this cell beside others that are selected later ({})",
                  action(ActionId::pin_selection).shortcut.text())
          .c_str());
  ImGui::SameLine();
  if (small_button("Copy")) context.state.wanted = ActionId::copy_csv;
  tip("Copy all of this as CSV");
  if (facts_.pending) busy_mark();
}

void InspectorPanel::draw_notes() const {
  const Theme& t = theme();
  for (const InspectorFacts::Kept& one : facts_.kept) {
    const std::string text = fmt::format("{} {}", one.setting, one.policy);
    if (&one != &facts_.kept.front())
      flow(ImGui::CalcTextSize((text + "evicts" + "it").c_str()).x + t.px(24));
    dim_text(text);
    tip("What the settings of What if do with the token in this head");
    ImGui::SameLine(0, t.px(5));
    ImGui::TextUnformatted(one.kept ? "keeps" : "evicts");
    ImGui::SameLine(0, t.px(4));
    dim_text("it");
  }
  if (!facts_.selection.tokens.empty()) dim_text(chosen_text(facts_.selection.tokens));
  if (const auto& pair = facts_.selection.channels) {
    dim_text(pair->first == pair->second ? fmt::format("channel {}", pair->first)
                                         : fmt::format("channels {} and {}", pair->first, pair->second));
    if (facts_.interaction) {
      ImGui::SameLine(0, t.px(12));
      figure("H", number_text(*facts_.interaction));
      tip(fmt::format(
              "(k_c . k_e) over the prompt's keys without the last {}, times the sum over query heads "
              "of (q_c . q_e) over the window's {} queries",
              facts_.recent, facts_.comparison.window)
              .c_str());
    }
  }
}

/// Runs that do not have the cell that is selected, and why.
void InspectorPanel::draw_missing() const {
  for (const InspectorFacts::Column& column : facts_.columns)
    if (!column.pin && !column.why.empty())
      dim_text(facts_.several_runs ? fmt::format("{}: {}", column.run, column.why) : column.why);
}

void InspectorPanel::draw(PanelContext& context) {
  if (!context.state.run()) return hint("Open a dump or a result folder.");
  facts_.gather(context);
  const Run& run = *context.state.run();
  const Selection& s = facts_.selection;
  if (!s.token && !s.row && s.tokens.empty() && !s.channels && facts_.columns.empty())
    return hint(
        "Click a cell of the token map to see its numbers, or choose tokens together with a lasso in Score "
        "against exact.");

  // The buttons stand at the right end of the first line, where that has room for a word beside them.
  const ImVec2 at = ImGui::GetCursorPos();
  const float buttons =
      context.figure ? 0 : ImGui::CalcTextSize("PinCopy").x + theme().px(42 + (facts_.pending ? 24 : 0));
  ImGui::SetCursorPosX(at.x + std::max(0.0F, ImGui::GetContentRegionAvail().x - buttons));
  {
    const OutOfSight controls(context.figure);
    draw_buttons(context);
  }
  const bool beside = ImGui::GetContentRegionAvail().x >= theme().px(kLeastPosition) + buttons;
  if (beside) ImGui::SetCursorPos(at);
  const float taken = beside ? buttons + theme().px(6) : 0;
  if (s.row)
    draw_position(run, "row", *s.row, taken);
  else if (s.token)
    draw_position(run, "token", *s.token, taken);
  else
    dim_text(fmt::format("layer {}, KV head {}", run.layer_number(s.layer), s.kv_head));
  if (s.row && s.token) draw_position(run, "token", *s.token);
  const Veil veil(context.veiled);
  draw_notes();
  for (const std::string& error : facts_.errors) error_line(error);
  ImGui::Dummy({0, theme().px(2)});

  if (const auto unpinned = draw_inspector_table(facts_))
    context.state.pins.erase(context.state.pins.begin() + static_cast<std::ptrdiff_t>(*unpinned));
  if (s.row && !s.token && facts_.columns.empty())
    dim_text("Select a token too to see what the row does with it.");
  draw_missing();
  if (facts_.largest.empty()) return;
  ImGui::Dummy({0, theme().px(4)});
  const std::string title = fmt::format("Largest {} of the chosen tokens", name_of(facts_.comparison.score));
  heading(title.c_str());
  if (const auto token = draw_largest(facts_, run.labels())) context.state.select_cell(s.row, token);
}

std::string InspectorPanel::csv(PanelContext& context) const {
  const bool shown =
      !facts_.columns.empty() || !facts_.token.empty() || !facts_.tokens.empty() || facts_.interaction;
  return shown && context.state.run() ? facts_.csv(*context.state.run()) : std::string();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::inspector>() {
  return std::make_unique<InspectorPanel>();
}

}  // namespace kvreplay::viewer
