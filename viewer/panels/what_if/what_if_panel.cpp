#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/session_keys.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/no_dump.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/what_if/error_waterfall.hpp"
#include "viewer/panels/what_if/kept_brush.hpp"
#include "viewer/panels/what_if/kept_strip.hpp"
#include "viewer/panels/what_if/what_if_controls.hpp"
#include "viewer/panels/what_if/what_if_heads.hpp"
#include "viewer/panels/what_if/what_if_pinned.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/command_text.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

constexpr Index kHeadsByDefault = 64;
constexpr std::size_t kFutureError = 2;  // of what_if_figures()
constexpr std::size_t kDifference = 2;   // of A, B, B - A

/// Two settings of a policy: what each keeps of the selected head and what that costs exactly.
class WhatIfPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_.heatmap(); }
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
  void draw_heads(PanelContext& context, ImVec2 size);
  bool all_heads(const Run& run) const {
    return all_heads_.value_or(run.shape().layers * run.shape().n_kv <= kHeadsByDefault);
  }

  std::optional<bool> more_, all_heads_;  // empty: by the room there is, by the number of heads
  std::size_t figure_ = kFutureError;
  std::size_t show_ = kDifference;
  std::optional<RowSet> split_rows_;

  std::array<Answer<WhatIf>, 2> now_;  // of this frame: the selected head under A and B
  KeptStrip strip_;
  HeadGrid map_;
  std::array<WhatIfHeads, 2> heads_;
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
    if (all_heads(*run)) {
      if (now_[s].error.empty()) heads_[s].follow(*run, settings[s]);
      heads_[s].ask(context);
    }
  }
  pinned_.ask(context, settings);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (room.x < t.px(620)) {
    float needed = 804;
    for (const WhatIfSettings& one : settings) needed += one.compensation != Compensation::none ? 110 : 0;
    draw_settings(context, room.y > t.px(needed));
    draw_figures(context.figure);
    ImGui::Dummy({0, t.px(2)});
    draw_kept(context, ImGui::GetContentRegionAvail().x);
    draw_split(ImGui::GetContentRegionAvail().x);
    const ImVec2 rest = ImGui::GetContentRegionAvail();
    return draw_heads(context, {rest.x, std::max(rest.y, t.px(190))});
  }
  const float left = std::clamp(room.x * 0.4F, t.px(300), t.px(400));
  ImGui::BeginChild("settings", {left, 0});
  draw_settings(context, room.y > t.px(484));
  draw_figures(context.figure);
  ImGui::EndChild();
  ImGui::SameLine(0, t.px(14));
  ImGui::BeginChild("results", {0, 0});
  draw_kept(context, ImGui::GetContentRegionAvail().x);
  draw_split(ImGui::GetContentRegionAvail().x);
  const ImVec2 rest = ImGui::GetContentRegionAvail();
  draw_heads(context, {rest.x, std::max(rest.y, t.px(190))});
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
  figure_table(now_[0].value.get(), now_[1].value.get(), with_names);
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

void WhatIfPanel::draw_heads(PanelContext& context, ImVec2 size) {
  AppState& state = context.state;
  const auto& run = state.run();
  const float top = ImGui::GetCursorPosY();
  bool on = all_heads(*run);
  if (context.figure && !on) return;
  std::optional<OutOfSight> controls(std::in_place, context.figure);
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(6), theme().px(2)});
  if (ImGui::Checkbox("All heads", &on)) all_heads_ = on;
  tip("Computes both settings for all heads in the background");
  if (!on) {
    ImGui::PopStyleVar();
    if (size.y > theme().px(60)) hint("All heads: a map of any figure under A and B.");
    return;
  }
  const WhatIfHeads &a = heads_[0], &b = heads_[1];
  constexpr std::array<std::string_view, 3> kShow = {"A", "B", "B - A"};
  flow(ImGui::CalcTextSize("ABB - A").x + 6 * ImGui::GetStyle().FramePadding.x + theme().px(2));
  segments("show", kShow, show_);
  const Index done = a.answered() + b.answered(), all = a.heads() + b.heads();
  if (done < all) {
    flow(ImGui::CalcTextSize("100 %").x + theme().px(24));
    ImGui::AlignTextToFramePadding();
    dim_text(fmt::format("{:.0f} %", 100 * static_cast<double>(done) / static_cast<double>(all)));
    tip(fmt::format("{} of {} answers: every head under A and B", done, all).c_str());
    busy_mark();
  }
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kShownFigures; ++i) names.emplace_back(what_if_figures()[i].title);
  const auto mean = [&] {
    const WhatIfFigure& what = what_if_figures()[figure_];
    return fmt::format("{} / {}", what.text(a.mean(figure_)), what.text(b.mean(figure_)));
  };
  const float beside = figure_width("mean", mean()) + ImGui::GetStyle().ItemSpacing.x;
  choose("##figure", names, figure_,
         std::clamp((ImGui::GetContentRegionAvail().x - beside) / theme().scale, 108.0F, 172.0F));
  tip(what_if_figures()[figure_].about.c_str());
  ImGui::PopStyleVar();
  const WhatIfFigure& what = what_if_figures()[figure_];
  flow(figure_width("mean", mean()));
  controls.reset();
  if (context.figure) {
    ImGui::AlignTextToFramePadding();
    dim_text(fmt::format("{} of every head, {}:", what.title, kShow[show_]));
    flow(figure_width("mean", mean()));
  }
  ImGui::AlignTextToFramePadding();
  figure("mean", mean());
  tip("Mean over heads, A / B");
  const Index failed = a.failed() + b.failed();
  if (failed > 0)
    error_line(fmt::format("{} of {} failed: {}", failed, all, a.failed() > 0 ? a.error() : b.error()));
  const auto value = [&](const WhatIfHeads& heads, Index head) {
    const WhatIfFigures* found = heads.at(head);
    return found != nullptr ? (*found)[figure_] : kNone;
  };
  const bool difference = show_ == kDifference;
  HeadGridContent content;
  content.key = {run->key(), "what_if_map", figure_, show_, a.version(), b.version()};
  content.quantity = difference ? fmt::format("{}, B - A", what.title) : what.title;
  // Shares as they are written elsewhere.
  const double times = what.is_share() ? 100 : 1;
  content.unit = !what.is_share() ? what.unit : difference ? "points" : "%";
  content.is_signed = difference;
  content.value = [&](Index head) {
    return times *
           (difference ? difference_of(value(a, head), value(b, head)) : value(show_ == 0 ? a : b, head));
  };
  const auto head = map_.draw({size.x, size.y - (ImGui::GetCursorPosY() - top)}, content, state);
  if (!head) return;
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(
      fmt::format("Layer {}, KV head {}", *head / run->shape().n_kv, *head % run->shape().n_kv).c_str());
  dim_text(what.title);
  figure("A", what.text(value(a, *head)));
  ImGui::SameLine();
  figure("B", what.text(value(b, *head)));
  ImGui::EndTooltip();
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
  const bool all = all_heads(*run);
  for (Index head = 0; all && head < heads_[0].heads(); ++head)
    for (std::size_t s = 0; s < 2; ++s)
      if (const WhatIfFigures* figures = heads_[s].current(head))
        add(head / run->shape().n_kv, head % run->shape().n_kv, s, heads_[s].settings(), *figures);
  for (std::size_t s = 0; s < 2; ++s)
    if (!all && now_[s] && !now_[s].stale)
      add(selection.layer, selection.kv_head, s, state.settings()[s], figures_of(*now_[s]));
  return table.text();
}

nlohmann::json WhatIfPanel::save() const {
  nlohmann::json json = {
      {"figure", what_if_figures()[figure_].name}, {"show", show_}, {"map", map_.heatmap().save()}};
  if (more_) json["more"] = *more_;
  if (all_heads_) json["all_heads"] = *all_heads_;
  if (split_rows_) json["split_rows"] = name_of(*split_rows_);
  return json;
}

void WhatIfPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  Keys keys(json);
  keys.read("more", more_);
  keys.read("all_heads", all_heads_);
  keys.read("show", show_, std::size_t{0}, kDifference);
  std::string name, rows;
  keys.read("split_rows", rows);
  for (const RowSet one : {RowSet::window, RowSet::future, RowSet::reference})
    if (rows == name_of(one)) split_rows_ = one;
  keys.read("figure", name);
  for (std::size_t i = 0; i < kShownFigures; ++i)
    if (name == what_if_figures()[i].name) figure_ = i;
  if (const nlohmann::json* map = keys.at("map")) map_.heatmap().load(*map);
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::what_if>() {
  return std::make_unique<WhatIfPanel>();
}

}  // namespace kvreplay::viewer
