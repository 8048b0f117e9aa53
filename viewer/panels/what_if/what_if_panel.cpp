#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/session_keys.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/no_dump.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/what_if/error_waterfall.hpp"
#include "viewer/panels/what_if/figure_table.hpp"
#include "viewer/panels/what_if/kept_brush.hpp"
#include "viewer/panels/what_if/kept_strip.hpp"
#include "viewer/panels/what_if/what_if_controls.hpp"
#include "viewer/panels/what_if/what_if_head_map.hpp"
#include "viewer/panels/what_if/what_if_pinned.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/command_text.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

/// Two settings of a policy: what each keeps of the selected head and what that costs exactly.
class WhatIfPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &heads_.heatmap(); }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  void draw_buttons(AppState& state);
  void draw_settings(PanelContext& context, bool roomy);
  void draw_figures(bool with_names);
  void draw_kept(PanelContext& context, float width);
  void draw_split(float width);

  std::optional<bool> more_;  // empty: by the room there is
  std::optional<RowSet> split_rows_;

  std::array<Answer<WhatIf>, 2> now_;  // of this frame: the selected head under A and B
  std::vector<FigureLine> lines_;      // likewise: its figures
  KeptStrip strip_;
  WhatIfHeadMap heads_;
  PinnedWhatIf pinned_;
};

void WhatIfPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const auto& run = state.run();
  if (run->dump() == nullptr)
    return hint_no_dump(
        state, fmt::format("What a policy keeps is computed from the dump, and this run has none: {}.",
                           run->why_no_dump()));
  const Selection& selection = state.selection();
  const std::array<WhatIfSettings, 2> settings = state.settings();
  for (std::size_t s = 0; s < 2; ++s) {
    now_[s] = ask_what_if(context, settings[s], selection.layer, selection.kv_head, Urgency::now,
                          {s, selection.layer, selection.kv_head});
    if (heads_.on(*run)) heads_.follow(context, s, settings[s], now_[s].error.empty());
  }
  pinned_.ask(context, settings);

  lines_ = figure_lines(*run->dump(), {now_[0].value.get(), now_[1].value.get()},
                        heads_.on(*run) ? &heads_.heads() : nullptr);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float table = 18 * static_cast<float>(lines_.size());
  if (room.x < t.px(620)) {
    float needed = 660 + table;
    for (const WhatIfSettings& one : settings) needed += one.compensation != Compensation::none ? 110 : 0;
    draw_settings(context, room.y > t.px(needed));
    draw_figures(context.figure);
    ImGui::Dummy({0, t.px(2)});
    draw_kept(context, ImGui::GetContentRegionAvail().x);
    draw_split(ImGui::GetContentRegionAvail().x);
    const ImVec2 rest = ImGui::GetContentRegionAvail();
    return heads_.draw(context, {rest.x, std::max(rest.y, t.px(190))});
  }
  const float left = std::clamp(room.x * 0.4F, t.px(300), t.px(400));
  ImGui::BeginChild("settings", {left, 0});
  draw_settings(context, room.y > t.px(340 + table));
  draw_figures(context.figure);
  ImGui::EndChild();
  ImGui::SameLine(0, t.px(14));
  ImGui::BeginChild("results", {0, 0});
  draw_kept(context, ImGui::GetContentRegionAvail().x);
  draw_split(ImGui::GetContentRegionAvail().x);
  const ImVec2 rest = ImGui::GetContentRegionAvail();
  heads_.draw(context, {rest.x, std::max(rest.y, t.px(190))});
  ImGui::EndChild();
}

void WhatIfPanel::draw_buttons(AppState& state) {
  if (small_button("Swap")) std::swap(state.setting_a, state.setting_b);
  tip("A becomes B, and B becomes A");
  flow(small_button_width("Copy A to B"));
  if (small_button("Copy A to B")) state.setting_b = state.setting_a;
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(3), theme().px(0.5F)});
  flow(check_width("Fade evicted"));
  fade_evicted(state.show_kept);
  ImGui::PopStyleVar();
}

void WhatIfPanel::draw_settings(PanelContext& context, bool roomy) {
  const OutOfSight controls(context.figure);
  AppState& state = context.state;
  draw_buttons(state);
  const bool more = more_.value_or(roomy);
  edit_settings(state, more);
  if (small_button(more ? "Fewer settings" : "More settings")) more_ = !more;
  tip("Window, pooling, pinned tokens, blocks");
  draw_kept_brush(state);
  if (now_[0].pending || now_[1].pending) busy_mark();
  const bool same = now_[0].error == now_[1].error;
  for (std::size_t s = 0; s < (same ? 1 : 2); ++s)
    if (!now_[s].error.empty())
      error_line(fmt::format("{}{}", same ? "" : s == 0 ? "A: " : "B: ", now_[s].error));
}

void WhatIfPanel::draw_figures(bool with_names) {
  figure_table(lines_, with_names);
  pinned_.draw(now_);
  std::vector<std::string> notes;
  for (const Answer<WhatIf>& answer : now_)
    if (answer)
      for (const std::string& note : answer->notes)
        if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  ImGui::PushTextWrapPos(0);
  for (const std::string& note : notes) dim_text(note);
  ImGui::PopTextWrapPos();
}

void WhatIfPanel::draw_kept(PanelContext& context, float width) {
  AppState& state = context.state;
  const auto& run = state.run();
  const Selection& selection = state.selection();
  heading("Kept set");
  if (now_[0] && now_[1]) kept_legend(kept_difference(now_[0]->kept, now_[1]->kept), width);
  KeptStripContent content;
  content.l = run->shape().l;
  content.a = now_[0] ? &now_[0]->kept : nullptr;
  content.b = now_[1] ? &now_[1]->kept : nullptr;
  content.selected = selection.token;
  content.hovered = state.hover.token;
  content.chosen = selection.tokens;
  content.link = {run->key(), "tokens"};
  strip_.draw("kept", width, content, state.links);
  const auto token = strip_.axis().hovered();
  if (!token) return;
  state.next_hover.token = token;
  if (strip_.axis().clicked()) state.select_cell(selection.row, token);
  const auto kept = [&](const KeptSet* set) {
    return set == nullptr ? "?" : (*set)[*token] != 0 ? "kept" : "evicted";
  };
  const std::string text = token_text(run->labels(), *token, 32);
  ImGui::BeginTooltip();
  figure("token", fmt::format("{} {}", *token, text));
  figure("A", kept(content.a));
  ImGui::SameLine();
  figure("B", kept(content.b));
  ImGui::EndTooltip();
}

void WhatIfPanel::draw_split(float width) {
  const std::array<const WhatIf*, 2> answers{now_[0].value.get(), now_[1].value.get()};
  if (!any_compensated(answers)) return;
  error_waterfalls(answers, split_rows_, width);
  ImGui::Dummy({0, theme().px(2)});
}

std::string WhatIfPanel::figure_title(PanelContext& context) const {
  const AppState& state = context.state;
  return fmt::format("{} (A) and {} (B)", state.setting_a.policy(), state.setting_b.policy());
}

std::vector<std::string> WhatIfPanel::figure_settings(PanelContext& context) const {
  return settings_lines(context.state);
}

std::string WhatIfPanel::csv(PanelContext& context) const {
  const AppState& state = context.state;
  const auto& run = state.run();
  if (run == nullptr || run->dump() == nullptr) return {};
  std::string header = "layer,kv_head,setting,what,compensate";
  for (const WhatIfFigure& one : what_if_figures()) header.append(",").append(one.name);
  CsvTable table(header);
  const auto add = [&](Index layer, Index g, std::size_t s, const WhatIfSettings& settings,
                       const WhatIfFigures& figures) {
    table.add(layer).add(g).add(s == 0 ? "A" : "B").add(summary_of(settings));
    table.add(name_of(settings.compensation));
    for (const double value : figures) table.add(if_any(value));
    table.end_row();
  };
  const Selection& selection = state.selection();
  const bool all = heads_.on(*run);
  const std::array<WhatIfHeads, 2>& heads = heads_.heads();
  for (Index head = 0; all && head < heads[0].heads(); ++head)
    for (std::size_t s = 0; s < 2; ++s)
      if (const WhatIfFigures* figures = heads[s].current(head))
        add(head / run->shape().n_kv, head % run->shape().n_kv, s, heads[s].settings(), *figures);
  for (std::size_t s = 0; s < 2; ++s)
    if (!all && now_[s] && !now_[s].stale)
      add(selection.layer, selection.kv_head, s, state.settings()[s], figures_of(*now_[s]));
  return table.text();
}

nlohmann::json WhatIfPanel::save() const {
  nlohmann::json json = nlohmann::json::object();
  heads_.save(json);
  if (more_) json["more"] = *more_;
  if (split_rows_) json["split_rows"] = name_of(*split_rows_);
  return json;
}

void WhatIfPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  heads_.load(json);
  Keys keys(json);
  keys.read("more", more_);
  std::string rows;
  keys.read("split_rows", rows);
  for (const RowSet one : {RowSet::window, RowSet::future, RowSet::reference})
    if (rows == name_of(one)) split_rows_ = one;
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::what_if>() {
  return std::make_unique<WhatIfPanel>();
}

}  // namespace kvreplay::viewer
