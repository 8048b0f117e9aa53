#include "analysis/results/figures.hpp"
#include "analysis/results/metric_table.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/what_if/what_if_controls.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/what_if_figures.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <imgui.h>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// One figure over all heads under A and B. The heads themselves are the Head map's.
class AllHeads {
 public:
  /// True if all heads are computed. Default: true if the computation takes at most a minute.
  bool on(const Run& run, const std::array<WhatIfSettings, 2>& settings) const;
  /// Starts following a setting and requests the next heads. A setting that cannot be followed is skipped:
  /// the heads keep the previous setting's metrics.
  void follow(PanelContext& context, std::size_t setting, const WhatIfSettings& settings, bool can_follow);
  const std::array<WhatIfHeads, 2>& heads() const { return heads_; }
  void draw(PanelContext& context, bool on);

  void keep(SessionFields& fields);

 private:
  void draw_progress() const;
  void choose_figure(const Dump& dump);
  /// The names and the numbers of what the figure is over all heads, A / B, and what the names say.
  struct OverHeads {
    const char* name;
    std::string about, numbers;
    bool whole = true;  // false: heads are missing
  };
  std::vector<OverHeads> over_heads() const;

  std::optional<bool> all_heads_;
  std::string figure_;  // the name of one of what_if_figures(); empty, or not in the dump: main_cost()
  std::size_t shown_ = 0;
  std::array<WhatIfHeads, 2> heads_;
};

bool AllHeads::on(const Run& run, const std::array<WhatIfSettings, 2>& settings) const {
  return all_heads_.value_or(
      setting_work(run.shape(), settings[0]) + setting_work(run.shape(), settings[1]) <= kUnaskedWork);
}

void AllHeads::follow(PanelContext& context, std::size_t setting, const WhatIfSettings& settings,
                      bool can_follow) {
  if (can_follow) heads_[setting].follow(*context.run(), settings);
  // A first: a map that is whole says more than two halves.
  if (setting == 0 || heads_[0].answered() == heads_[0].heads()) heads_[setting].ask(context);
}

void AllHeads::draw_progress() const {
  const Index done = heads_[0].answered() + heads_[1].answered(), all = heads_[0].heads() + heads_[1].heads();
  if (done >= all) return;
  flow(ImGui::CalcTextSize("100 %").x + theme().px(24));
  text_beside(fmt::format("{:.0f} %", 100 * static_cast<double>(done) / static_cast<double>(all)));
  tip(fmt::format("{} of {} answers: every head under A and B", done, all).c_str());
  busy_mark();
}

void AllHeads::choose_figure(const Dump& dump) {
  const std::vector<std::size_t> there = shown_figures(dump);
  std::vector<Choice> choices;
  shown_ = main_cost(dump);
  for (std::size_t i = 0; i < kShownFigures; ++i) {
    const WhatIfFigure& figure = what_if_figures()[i];
    choices.push_back({.name = figure.title, .tip = figure.about});
    choices.back().enabled = std::find(there.begin(), there.end(), i) != there.end();
    if (!choices.back().enabled) choices.back().tip = why_no_nats(dump, *figure.loss_on);
    if (choices.back().enabled && figure.name == figure_) shown_ = i;
  }
  if (choose("##figure", choices, shown_, 172)) figure_ = what_if_figures()[shown_].name;
  tip(what_if_figures()[shown_].about);
}

std::vector<AllHeads::OverHeads> AllHeads::over_heads() const {
  const WhatIfFigure& what = what_if_figures()[shown_];
  const auto both = [&](const auto& of, const auto& settings) {
    return fmt::format("{} / {}", what.text(of(settings[0])), what.text(of(settings[1])));
  };
  if (what.loss_on) {
    const auto step = [&](const WhatIfHeads& heads) {
      const auto loss = heads.loss(*what.loss_on);
      return loss ? loss->step() : kNone;
    };
    return {{kLossStep.name.data(), "Predicted cost of all heads together, A / B, once all are known",
             both(step, heads_)}};
  }
  const std::array<std::vector<double>, 2> values = common_values(heads_, shown_);
  const bool whole = heads_[0].answered() == heads_[0].heads() && heads_[1].answered() == heads_[1].heads();
  const std::string of = whole ? std::string()
                               : fmt::format(", over the {} of {} heads that are known under both",
                                             values[0].size(), heads_[0].heads());
  return {
      {"mean", "Mean over heads, A / B" + of,
       both([](const std::vector<double>& all) { return all.empty() ? kNone : mean(all); }, values), whole},
      {"median", "Median head, A / B: no few heads rule it" + of,
       both([](std::vector<double> all) { return quantile(all, 0.5); }, values), whole}};
}

void AllHeads::draw(PanelContext& context, bool on) {
  if (context.figure && !on) return;
  std::optional<HiddenDraw> controls(std::in_place, context.figure);
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(6), theme().px(2)});
  bool all = on;
  if (ImGui::Checkbox("All heads", &all)) all_heads_ = all;
  tip("Computes both settings for all heads in the background; the Head map shows each");
  if (!all) return ImGui::PopStyleVar();
  draw_progress();
  flow(theme().px(172));
  choose_figure(*context.run()->dump());
  ImGui::PopStyleVar();
  controls.reset();
  if (context.figure) text_beside(fmt::format("{} of every head:", what_if_figures()[shown_].title));
  for (const auto& [name, about, numbers, whole] : over_heads()) {
    flow(figure_width(name, numbers));
    ImGui::AlignTextToFramePadding();
    if (!whole) ImGui::PushStyleColor(ImGuiCol_Text, theme().faint);
    figure(name, numbers);
    if (!whole) ImGui::PopStyleColor();
    tip(about);
  }
  const Index failed = heads_[0].failed() + heads_[1].failed();
  if (failed > 0)
    error_line(fmt::format("{} of {} failed: {}", failed, heads_[0].heads() + heads_[1].heads(),
                           heads_[heads_[0].failed() > 0 ? 0 : 1].error()));
}

void AllHeads::keep(SessionFields& fields) {
  fields.field("all_heads", all_heads_);
  fields.field("figure", figure_);
}

/// Loss of the pinned run under the settings of What if, if the selected run is compared with it.
class PinnedWhatIf {
 public:
  void ask(PanelContext& context, const std::array<WhatIfSettings, 2>& settings);
  /// A line with the pinned run's errors under A and B, and how much larger `own` ones are; or why there is
  /// none. Nothing where no run is pinned.
  void draw(const std::array<Answer<WhatIf>, 2>& own) const;

 private:
  std::array<Answer<WhatIf>, 2> now_;  // of this frame
  std::string name_, problem_;         // no name: no run is pinned
};

void PinnedWhatIf::ask(PanelContext& context, const std::array<WhatIfSettings, 2>& settings) {
  *this = {};
  const std::shared_ptr<const Run> run = context.state.subtracted();
  if (run == nullptr) return;
  name_ = run->name();
  if (run->dump() == nullptr) {
    problem_ =
        fmt::format("What {} loses needs its dump, which is not at hand: {}", name_, run->why_no_dump());
    return;
  }
  PanelContext of_pinned = context.of(run);
  const Selection& selection = context.state.selection();
  for (std::size_t s = 0; s < now_.size(); ++s) {
    now_[s] = ask_what_if(of_pinned, settings[s], selection.layer, selection.kv_head, Urgency::soon,
                          {"pinned", s, selection.layer, selection.kv_head});
    if (problem_.empty() && !now_[s].error.empty()) problem_ = fmt::format("{}: {}", name_, now_[s].error);
  }
}

void PinnedWhatIf::draw(const std::array<Answer<WhatIf>, 2>& own) const {
  if (name_.empty()) return;
  if (!problem_.empty()) return error_line(problem_);
  constexpr std::array<std::string_view, 2> kSettings = {"A", "B"};
  std::vector<std::string> errors;
  bool future = false;
  for (std::size_t s = 0; s < now_.size(); ++s) {
    if (!own[s] || !now_[s] || own[s].stale || now_[s].stale) continue;
    future = !std::isnan(now_[s]->future.error);
    const auto error = [&](const WhatIf& of) { return future ? of.future.error : of.window.error; };
    errors.push_back(fmt::format("{} {}", kSettings[s], pinned_text(error(*own[s]), error(*now_[s]))));
  }
  ImGui::PushTextWrapPos(0);
  dim_text(errors.empty() ? fmt::format("{}: ...", name_)
                          : fmt::format("{}: {}", name_, fmt::join(errors, ", ")));
  ImGui::PopTextWrapPos();
  tip(fmt::format("The pinned run's output_error on the {}, and how much larger this run's is",
                  future ? "decoding steps" : "window's queries"));
}

/// Two settings of a policy: what each keeps of the selected head and what that costs exactly.
class WhatIfPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

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
  AllHeads heads_;
  bool all_ = false;         // in this frame: they are looked at
  bool comparable_ = false;  // likewise: A and B are of one budget
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
  all_ = heads_.on(*run, settings);
  for (std::size_t s = 0; s < 2; ++s) {
    now_[s] = ask_what_if(context, settings[s], selection.layer, selection.kv_head, Urgency::now,
                          {s, selection.layer, selection.kv_head});
    if (all_) heads_.follow(context, s, settings[s], now_[s].error.empty());
  }
  const auto budget = [&](std::size_t s) {
    return settings[s].tokens(run->shape().l, settings[s].semantics);
  };
  // Rounded by either semantics.
  comparable_ = !now_[0].stale && !now_[1].stale && std::abs(budget(0) - budget(1)) <= 1;
  pinned_.ask(context, settings);

  lines_ = figure_lines(*run->dump(), {now_[0].value.get(), now_[1].value.get()},
                        all_ ? &heads_.heads() : nullptr);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float table = 18 * static_cast<float>(lines_.size());
  if (room.x < t.px(620)) {
    float needed = 494 + table;
    for (const WhatIfSettings& one : settings) needed += one.compensation != Compensation::none ? 110 : 0;
    draw_settings(context, room.y > t.px(needed));
    const StaleOverlay veil(context.veiled);
    draw_figures(context.figure);
    ImGui::Dummy({0, t.px(2)});
    draw_kept(context, ImGui::GetContentRegionAvail().x);
    draw_split(ImGui::GetContentRegionAvail().x);
    return heads_.draw(context, all_);
  }
  const float left = std::clamp(room.x * 0.4F, t.px(300), t.px(400));
  ImGui::BeginChild("settings", {left, 0});
  draw_settings(context, room.y > t.px(364 + table));
  {
    const StaleOverlay veil(context.veiled);
    draw_figures(context.figure);
  }
  ImGui::EndChild();
  ImGui::SameLine(0, t.px(14));
  ImGui::BeginChild("results", {0, 0});
  {
    const StaleOverlay veil(context.veiled);
    draw_kept(context, ImGui::GetContentRegionAvail().x);
    draw_split(ImGui::GetContentRegionAvail().x);
    heads_.draw(context, all_);
  }
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
  const HiddenDraw controls(context.figure);
  AppState& state = context.state;
  draw_buttons(state);
  const bool more = more_.value_or(roomy);
  edit_settings(state, more);
  draw_kept_brush(state);
  const char* const label = more ? "Fewer settings" : "More settings";
  flow(small_button_width(label));
  if (small_button(label)) more_ = !more;
  tip("Window, pooling, pinned tokens, blocks");
  if (now_[0].pending || now_[1].pending) busy_mark();
  const bool same = now_[0].error == now_[1].error;
  for (std::size_t s = 0; s < (same ? 1 : 2); ++s)
    if (!now_[s].error.empty())
      error_line(fmt::format("{}{}", same ? "" : s == 0 ? "A: " : "B: ", now_[s].error));
}

void WhatIfPanel::draw_figures(bool with_names) {
  figure_table(lines_, comparable_, with_names);
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
  const bool all = heads_.on(*run, state.settings());
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

void WhatIfPanel::keep(SessionFields& fields) {
  heads_.keep(fields);
  fields.field("more", more_);
  fields.name("split_rows", split_rows_, [](const std::string& name) {
    for (const RowSet rows : {RowSet::window, RowSet::future, RowSet::reference})
      if (name == name_of(rows)) return std::optional(rows);
    return std::optional<RowSet>();
  });
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::what_if>() {
  return std::make_unique<WhatIfPanel>();
}

}  // namespace kvreplay::viewer
