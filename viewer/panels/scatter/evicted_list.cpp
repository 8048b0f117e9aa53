#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/scatter/scatter_parts.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Longer prompts are not asked for other policies' kept sets.
constexpr Index kPoliciesUpTo = 16384;
/// Tokens before and behind, in the words around a token.
constexpr Index kAround = 4;
constexpr std::size_t kLongestText = 24;

/// The token with what stands around it, as far as there is room: the words before it take a third at most.
void draw_words(const Run& run, Index token, float width) {
  if (!run.labels() || run.labels()->text.empty()) return mono_text(std::to_string(token));
  const auto joined = [&](Index first, Index end) {
    std::string text;
    for (Index p = std::max<Index>(first, 0); p < std::min(end, run.shape().T); ++p)
      text += run.labels()->text[p];
    return visible_text(text, 4 * kLongestText);
  };
  const auto extent = [](const std::string& text) { return ImGui::CalcTextSize(text.c_str()).x; };
  std::string before;
  for (Index first = token - 1; first >= token - kAround && first >= 0; --first) {
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
    dim_text(elided(joined(token + 1, token + 1 + kAround), left));
  else
    ImGui::NewLine();
}

}  // namespace

void EvictedList::draw(PanelContext& context, TokenMetric reference) {
  AppState& state = context.state;
  reference_ = reference;
  source_.ask(context, reference, state.run()->shape().l <= kPoliciesUpTo);
  if (!context.figure) choose_setting(state);
  if (source_.pending()) busy_mark();
  if (!source_.error().empty()) error_line(source_.error());
  if (source_.found() == nullptr) return source_.error().empty() ? hint("Computing ...") : void();
  const WronglyEvicted& found = *source_.found();
  const char setting = state.shows_b() ? 'B' : 'A';
  if (found.tokens.empty())
    return hint(fmt::format("{} keeps the {} tokens that are the largest by {}.", setting, found.kept,
                            name_of(reference)));
  std::string text = fmt::format("{} evicts {} of the {} best tokens by {}", setting, found.tokens.size(),
                                 found.kept, name_of(reference));
  if (!std::isnan(found.missed)) text += fmt::format(": {} of its sum", percent_text(found.missed));
  wrapped_text(text, theme().dim);
  if (!context.figure && small_button("Show these in all panels")) {
    std::vector<Index> all;
    for (const WronglyEvicted::Token& one : found.tokens) all.push_back(one.token);
    std::ranges::sort(all);
    state.select_tokens(all);
  }
  draw_table(state);
}

void EvictedList::draw_table(AppState& state) {
  const Theme& t = theme();
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1)});
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float least = 5 * ImGui::GetTextLineHeightWithSpacing();
  if (ImGui::BeginTable("tokens", 3, ImGuiTableFlags_ScrollY, {room.x, std::max(room.y, least)})) {
    const float rank =
        std::max(mono_width(std::to_string(state.run()->shape().l)), ImGui::CalcTextSize("score").x);
    ImGui::TableSetupColumn("exact", ImGuiTableColumnFlags_WidthFixed, rank);
    ImGui::TableSetupColumn("score", ImGuiTableColumnFlags_WidthFixed, rank);
    ImGui::TableSetupColumn("token in its words", ImGuiTableColumnFlags_WidthStretch);
    ImGui::TableSetupScrollFreeze(0, 1);
    ImGui::TableHeadersRow();
    ImGuiListClipper clipper;
    clipper.Begin(static_cast<int>(source_.found()->tokens.size()));
    while (clipper.Step())
      for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) draw_row(state, i);
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
}

void EvictedList::draw_row(AppState& state, Index row) {
  const Theme& t = theme();
  const WronglyEvicted::Token& one = source_.found()->tokens[row];
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const ImVec2 at = ImGui::GetCursorPos();
  const float width = ImGui::GetContentRegionAvail().x;
  const auto& chosen = state.selection().tokens;
  ImGui::PushID(static_cast<int>(one.token));
  if (ImGui::Selectable("##token", std::binary_search(chosen.begin(), chosen.end(), one.token),
                        ImGuiSelectableFlags_SpanAllColumns))
    choose(state, row);
  if (ImGui::IsItemHovered()) {
    state.next_hover.token = one.token;
    const std::string kept_by = source_.kept_by(one.token);
    ImGui::BeginTooltip();
    figure("token", fmt::format("{}  {}", one.token, token_text(state.run()->labels(), one.token, 40)));
    figure(std::string(name_of(reference_)).c_str(), number_text(one.truth));
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
}

void EvictedList::choose(AppState& state, Index row) {
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

std::string EvictedList::csv(const AppState& state) const {
  const WronglyEvicted* found = source_.found();
  if (found == nullptr || found->tokens.empty()) return {};
  CsvTable table("layer,kv_head,token,text,by_truth,by_score,truth,kept_by");
  const Selection& selection = state.selection();
  for (const WronglyEvicted::Token& one : found->tokens)
    table.row(selection.layer, selection.kv_head, one.token, token_text(state.run()->labels(), one.token, 80),
              one.by_truth, one.by_score > 0 ? std::optional(one.by_score) : std::nullopt, if_any(one.truth),
              source_.kept_by(one.token));
  return table.text();
}

}  // namespace kvreplay::viewer
