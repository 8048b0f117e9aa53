#include "analysis/options/option.hpp"
#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/actions.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/inspector/inspector_parts.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/inspector_facts.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <imgui.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// The numbers behind the selected cell, token, tokens and channels, and those of pinned cells.
class InspectorPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override { return "The selected cell, exactly"; }
  std::vector<std::string> figure_settings(PanelContext& context) const override {
    return settings_lines(context.state);
  }
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override { fields.field("all_figures", figures_open_); }

 private:
  void draw_buttons(PanelContext& context) const;
  void draw_position(const Run& run, const char* name, Index position, float taken = 0) const;
  void draw_notes() const;
  void draw_figures(PanelContext& context);
  void draw_missing() const;

  InspectorFacts facts_;
  bool figures_open_ = false;
  bool compared_ = false;  // whether something was pinned or chosen together
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
    ImGui::TextUnformatted(!one.kept ? "..." : *one.kept ? "keeps" : "evicts");
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
        "Click a token in the text or a cell of the token map to see what it costs, or choose tokens "
        "together "
        "with a lasso in Score against exact.");

  // The buttons stand at the right end of the first line, where that has room for a word beside them.
  const ImVec2 at = ImGui::GetCursorPos();
  const float buttons =
      context.figure ? 0 : ImGui::CalcTextSize("PinCopy").x + theme().px(42 + (facts_.pending ? 24 : 0));
  ImGui::SetCursorPosX(at.x + std::max(0.0F, ImGui::GetContentRegionAvail().x - buttons));
  {
    const HiddenDraw controls(context.figure);
    draw_buttons(context);
  }
  const bool beside = ImGui::GetContentRegionAvail().x >= theme().px(kLeastPosition) + buttons;
  if (beside) ImGui::SetCursorPos(at);
  const float taken = beside ? buttons + theme().px(6) : 0;
  if (s.row)
    draw_position(run, "query", *s.row, taken);
  else if (s.token)
    draw_position(run, "token", *s.token, taken);
  else
    dim_text(fmt::format("layer {}, KV head {}", run.layer_number(s.layer), s.kv_head));
  if (s.row && s.token) draw_position(run, "token", *s.token);
  const StaleOverlay veil(context.veiled);
  draw_notes();
  for (const std::string& error : facts_.errors) error_line(error);
  if (!facts_.card.token) ImGui::Dummy({0, theme().px(2)});
  draw_token_card(context.state, facts_.card, run.labels());
  draw_figures(context);
  draw_missing();
  if (facts_.largest.empty()) return;
  ImGui::Dummy({0, theme().px(4)});
  const std::string title = fmt::format("Largest {} of the chosen tokens", name_of(facts_.comparison.score));
  heading(title.c_str());
  if (const auto token = draw_largest(facts_, run.labels())) context.state.select_cell(s.row, token);
}

/// Every metric and entry: of a token folded below its card, of what is pinned or chosen together at once.
void InspectorPanel::draw_figures(PanelContext& context) {
  const Selection& s = facts_.selection;
  if (facts_.card.token) {
    const bool compares = !context.state.pins.empty() || !s.tokens.empty();
    if (std::exchange(compared_, compares) != compares) figures_open_ = compares;
    if (context.figure && !figures_open_) return;
    ImGui::SetNextItemOpen(figures_open_);
    ImGui::PushStyleColor(ImGuiCol_Header, theme().raised);
    figures_open_ = ImGui::CollapsingHeader("All figures");
    ImGui::PopStyleColor();
    tip("Every metric of the token, and every entry of the selected and the pinned cells");
    if (!figures_open_) return;
  }
  if (const auto unpinned = draw_inspector_table(facts_))
    context.state.pins.erase(context.state.pins.begin() + static_cast<std::ptrdiff_t>(*unpinned));
  if (s.row && !s.token && facts_.columns.empty())
    dim_text("Select a token too to see what the query does with it.");
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
