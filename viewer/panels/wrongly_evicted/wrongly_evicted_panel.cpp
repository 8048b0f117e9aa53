#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/wrongly_evicted.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Prompts beyond which other policies are asked on request only.
constexpr Index kPoliciesByDefault = 16384;
/// Tokens before and behind, in the words around a token.
constexpr Index kBefore = 4, kBehind = 4;
constexpr std::size_t kLongestText = 24;

/// What the shown setting evicts though the truth would have kept it.
class WronglyEvictedPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  TokenMetric truth(const AppState& state, const MetricSet& available) const;
  bool policies(const Run& run) const { return policies_.value_or(run.shape().l <= kPoliciesByDefault); }
  void draw_controls(AppState& state, const MetricSet& available, TokenMetric truth);
  void draw_summary(AppState& state, TokenMetric truth);
  void draw_table(AppState& state, TokenMetric truth);
  void draw_words(const Run& run, Index token, float width) const;
  void choose(AppState& state, Index row);
  std::vector<Index> all_tokens() const;

  std::optional<TokenMetric> truth_;  // empty: the oracle's, where there is one
  std::optional<bool> policies_;      // empty: by the prompt's length
  EvictedSource source_;
  Index anchor_ = 0;  // row that a run chosen with Shift begins with
};

/// As it was chosen; else what the decoding steps ask of each token, or the comparison's reference.
TokenMetric WronglyEvictedPanel::truth(const AppState& state, const MetricSet& available) const {
  if (truth_ && available.contains(*truth_)) return *truth_;
  if (available.contains(TokenMetric::oracle_importance)) return TokenMetric::oracle_importance;
  return state.comparison.reference;
}

void WronglyEvictedPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const Run& run = *state.run();
  if (run.dump() == nullptr)
    return hint_no_dump(
        state, fmt::format("What a policy keeps is computed from the dump, and this run has none: {}.",
                           run.why_no_dump()));
  const auto available = compared_metrics(state);
  if (!available) return;
  const TokenMetric truth = this->truth(state, *available);
  draw_controls(state, *available, truth);
  if (!is_there(truth, *available)) return;
  source_.ask(context, truth, policies(run));
  if (source_.pending()) busy_mark();
  if (!source_.error().empty()) error_line(source_.error());
  if (source_.found() == nullptr) return source_.error().empty() ? hint("Computing ...") : void();
  const Veil veil(context.veiled);
  draw_summary(state, truth);
  if (!source_.found()->tokens.empty()) draw_table(state, truth);
}

void WronglyEvictedPanel::draw_controls(AppState& state, const MetricSet& available, TokenMetric truth) {
  TokenMetric chosen = truth;
  if (choose_metric("##truth", *state.run(), available, chosen, combo_width("oracle_importance")))
    truth_ = chosen;
  flow(settings_width());
  choose_setting(state);
  flow(check_width("Others"));
  bool others = policies(*state.run());
  if (ImGui::Checkbox("Others", &others)) policies_ = others;
  tip("Also asks which tokens the usual policies would keep at the same budget");
}

void WronglyEvictedPanel::draw_summary(AppState& state, TokenMetric truth) {
  const WronglyEvicted& found = *source_.found();
  const char setting = state.shows_b() ? 'B' : 'A';
  if (found.tokens.empty())
    return hint(fmt::format("{} keeps the {} tokens that are the largest by {}.", setting, found.kept,
                            name_of(truth)));
  ImGui::PushTextWrapPos(0);
  std::string text = fmt::format("{} evicts {} of the {} best tokens by {}", setting, found.tokens.size(),
                                 found.kept, name_of(truth));
  if (!std::isnan(found.missed)) text += fmt::format(": {} of its sum", percent_text(found.missed));
  dim_text(text);
  ImGui::PopTextWrapPos();
  if (small_button("Show these in all panels")) state.select_tokens(all_tokens());
  tip("Chooses all of them: other panels mark them, and dim the rest");
}

std::vector<Index> WronglyEvictedPanel::all_tokens() const {
  std::vector<Index> tokens;
  for (const WronglyEvicted::Token& one : source_.found()->tokens) tokens.push_back(one.token);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

void WronglyEvictedPanel::draw_table(AppState& state, TokenMetric truth) {
  const Theme& t = theme();
  const WronglyEvicted& found = *source_.found();
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1)});
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const bool wide = room.x >= t.px(430);
  const float least = 5 * ImGui::GetTextLineHeightWithSpacing();
  if (ImGui::BeginTable("tokens", wide ? 4 : 3, ImGuiTableFlags_ScrollY, {room.x, std::max(room.y, least)})) {
    const float rank =
        std::max(mono_width(std::to_string(state.run()->shape().l)), ImGui::CalcTextSize("score").x);
    ImGui::TableSetupColumn("truth", ImGuiTableColumnFlags_WidthFixed, rank);
    ImGui::TableSetupColumn("score", ImGuiTableColumnFlags_WidthFixed, rank);
    ImGui::TableSetupColumn("token in its words", ImGuiTableColumnFlags_WidthStretch, 3);
    if (wide) ImGui::TableSetupColumn("kept by", ImGuiTableColumnFlags_WidthStretch, 2);
    ImGui::TableSetupScrollFreeze(0, 1);
    ImGui::TableHeadersRow();
    ImGuiListClipper clipper;
    clipper.Begin(static_cast<int>(found.tokens.size()));
    while (clipper.Step())
      for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) {
        const WronglyEvicted::Token& one = found.tokens[i];
        const std::string kept_by = source_.kept_by(one.token);
        ImGui::TableNextRow();
        ImGui::TableNextColumn();
        const ImVec2 at = ImGui::GetCursorPos();
        const float width = ImGui::GetContentRegionAvail().x;
        const auto& chosen = state.selection().tokens;
        ImGui::PushID(static_cast<int>(one.token));
        if (ImGui::Selectable("##token", std::binary_search(chosen.begin(), chosen.end(), one.token),
                              ImGuiSelectableFlags_SpanAllColumns))
          choose(state, i);
        if (ImGui::IsItemHovered()) {
          state.next_hover.token = one.token;
          ImGui::BeginTooltip();
          figure("token", fmt::format("{}  {}", one.token, token_text(state.run()->labels(), one.token, 40)));
          figure(std::string(name_of(truth)).c_str(), number_text(one.truth));
          figure("kept by", kept_by.empty() ? "none" : kept_by);
          ImGui::EndTooltip();
        }
        ImGui::PopID();
        ImGui::SetCursorPos(at);
        ImGui::PushFont(mono_font());
        right_aligned(std::to_string(one.by_truth), t.text, width);
        ImGui::TableNextColumn();
        right_aligned(one.by_score > 0 ? std::to_string(one.by_score) : "-", t.dim);
        ImGui::PopFont();
        ImGui::TableNextColumn();
        draw_words(*state.run(), one.token, ImGui::GetContentRegionAvail().x);
        if (!wide) continue;
        ImGui::TableNextColumn();
        dim_text(elided(kept_by, ImGui::GetContentRegionAvail().x));
      }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
}

/// The token with what stands around it, as far as there is room: what is before it takes a third at most.
void WronglyEvictedPanel::draw_words(const Run& run, Index token, float width) const {
  if (!run.labels() || run.labels()->text.empty()) return mono_text(std::to_string(token));
  const auto joined = [&](Index first, Index end) {
    std::string text;
    for (Index p = std::max<Index>(first, 0); p < std::min(end, run.shape().T); ++p)
      text += run.labels()->text[p];
    return visible_text(text, 4 * kLongestText);
  };
  const auto extent = [](const std::string& text) { return ImGui::CalcTextSize(text.c_str()).x; };
  std::string before;
  for (Index first = token - 1; first >= token - kBefore && first >= 0; --first) {
    std::string more = joined(first, token);
    if (extent(more) > width / 3) break;
    before = std::move(more);
  }
  const std::string text = elided(token_text(run.labels(), token, kLongestText), width);
  const float left = width - extent(before) - extent(text);
  if (left < 0) before.clear();
  if (!before.empty()) {
    dim_text(before);
    ImGui::SameLine(0, 0);
  }
  colored_text(text, theme().accent);
  ImGui::SameLine(0, 0);
  if (left > extent("888"))
    dim_text(elided(joined(token + 1, token + 1 + kBehind), left));
  else
    ImGui::NewLine();
}

/// Alone; with Ctrl beside the others, or no longer; with Shift all from the last one on.
void WronglyEvictedPanel::choose(AppState& state, Index row) {
  const auto& rows = source_.found()->tokens;
  const ImGuiIO& io = ImGui::GetIO();
  Selection next = state.selection();
  const Index token = rows[row].token;
  if (io.KeyShift) {
    next.tokens.clear();
    for (Index i = std::min(anchor_, row); i <= std::max(anchor_, row) && i < std::ssize(rows); ++i)
      next.tokens.push_back(rows[i].token);
  } else if (io.KeyCtrl) {
    if (std::erase(next.tokens, token) == 0) next.tokens.push_back(token);
  } else {
    next.tokens = {token};
  }
  if (!io.KeyShift) anchor_ = row;
  next.token = token;
  state.select(std::move(next));
}

std::string WronglyEvictedPanel::csv(PanelContext& context) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const WronglyEvicted* found = source_.found();
  if (run == nullptr || found == nullptr || found->tokens.empty()) return {};
  CsvTable table("layer,kv_head,token,text,by_truth,by_score,truth,kept_by");
  const Selection& selection = context.state.selection();
  for (const WronglyEvicted::Token& one : found->tokens)
    table.row(selection.layer, selection.kv_head, one.token, token_text(run->labels(), one.token, 80),
              one.by_truth, one.by_score > 0 ? std::optional(one.by_score) : std::nullopt, if_any(one.truth),
              source_.kept_by(one.token));
  return table.text();
}

void WronglyEvictedPanel::keep(SessionFields& fields) {
  fields.name("truth", truth_, in_table(kTokenMetrics));
  fields.field("policies", policies_);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::wrongly_evicted>() {
  return std::make_unique<WronglyEvictedPanel>();
}

}  // namespace kvreplay::viewer
