#include "analysis/options/option.hpp"
#include "analysis/report/plots.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/scatter/scatter_parts.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/scatter.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// A score against a reference, a point a token of the selected head.
class ScatterPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string svg(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  void draw_controls(AppState& state, const MetricSet& available);
  void draw_figures(PanelContext& context, const ScatterFacts& facts, const ScatterCut& cut);
  std::shared_ptr<const ScatterPair> pair(PanelContext& context);
  bool lists(const AppState& state) const { return evicted_ && state.run()->dump() != nullptr; }
  std::vector<std::uint8_t> classes(PanelContext& context, const ScatterFacts& facts);

  ScatterAxes axes_ = ScatterAxes::log;
  bool kept_ = false, evicted_ = false;
  ScatterPlot plot_;
  EvictedList list_;
  ComparedFacts<ScatterFacts> shown_, pinned_;
  Index kept_tokens_ = -1;  // of the setting, where it is known
};

void ScatterPanel::keep(SessionFields& fields) {
  fields.name("axes", axes_, in_table(kScatterAxes));
  fields.field("show_kept", kept_);
  fields.field("show_evicted", evicted_);
}

void ScatterPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const std::optional<MetricSet> available = compared_metrics(state);
  if (!available) return;
  {
    const HiddenDraw controls(context.figure);
    draw_controls(state, *available);
  }
  const Comparison& c = state.comparison;
  if (!is_there(c.score, *available) || !is_there(c.reference, *available)) return;
  const auto compute = [score = c.score, reference = c.reference, axes = axes_](
                           std::shared_ptr<const HeadSummary> head, JobControl&) {
    return scatter_facts(std::move(head), score, reference, axes);
  };
  const std::string pair = fmt::format("{} against {}", name_of(c.score), name_of(c.reference));
  const Key key("scatter", c.score, c.reference, axes_);
  pinned_.look_pinned(context, {c.score, c.reference}, key, pair, compute);
  if (!shown_.look(context, key, pair, compute)) return;
  const StaleOverlay veil(context.veiled);
  const ScatterFacts& facts = *shown_.get();
  if (facts.scatter.points.empty()) return hint("No token has a finite value of both.");
  const std::shared_ptr<const ScatterPair> both = this->pair(context);
  const ScatterCut cut =
      scatter_cut(facts, both != nullptr ? both->own : facts.scatter, compared_budget(state, facts.head->l));
  draw_figures(context, facts, cut);
  const Key run(shown_.run(), both != nullptr ? pinned_.run() : Key());
  const ScatterContent content{
      facts, both.get(), both != nullptr ? pinned_.get() : nullptr, classes(context, facts), cut, run};
  if (!lists(state)) return plot_.draw(state, content);
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float gap = theme().px(8);
  const bool wide = room.x >= theme().px(480);
  const ImVec2 plot = wide ? ImVec2{std::round(room.x * 0.55F) - gap, room.y}
                           : ImVec2{room.x, std::round(room.y * 0.55F) - gap};
  ImGui::BeginChild("plot", plot);
  plot_.draw(state, content);
  ImGui::EndChild();
  if (wide) ImGui::SameLine(0, gap);
  ImGui::BeginChild("evicted");
  list_.draw(context, facts.reference);
  ImGui::EndChild();
}

void ScatterPanel::draw_controls(AppState& state, const MetricSet& available) {
  const Theme& t = theme();
  Comparison& c = state.comparison;
  const Run& run = *state.run();
  std::array<std::string_view, kScatterAxes.size()> names;
  float buttons = 0;
  for (const ScatterAxesFacts& one : kScatterAxes) {
    names[static_cast<std::size_t>(one.id)] = one.button;
    buttons += ImGui::CalcTextSize(std::string(one.button).c_str()).x + 2 * ImGui::GetStyle().FramePadding.x +
               t.px(1);
  }
  const float rest = buttons + (run.dump() != nullptr ? check_width("Kept") + check_width("Evicted") : 0) +
                     ImGui::CalcTextSize("vs").x + t.px(12) + 4 * ImGui::GetStyle().ItemSpacing.x;
  const float width =
      std::clamp((ImGui::GetContentRegionAvail().x - rest) / 2 / t.scale - 0.5F, 76.0F, 150.0F);
  choose_metric("##score", run, available, c.score, width);
  flow(ImGui::CalcTextSize("vs").x + t.px(width + 5));
  text_beside("vs");
  ImGui::SameLine(0, t.px(5));
  choose_metric("##reference", run, available, c.reference, width);
  flow(buttons);
  auto chosen = static_cast<std::size_t>(axes_);
  ImGui::BeginGroup();
  if (segments("axes", names, chosen)) axes_ = kScatterAxes.all()[chosen];
  ImGui::EndGroup();
  tip(kScatterAxes[axes_].meaning);
  if (run.dump() != nullptr) {
    flow(check_width("Kept"));
    ImGui::Checkbox("Kept", &kept_);
    tip("Colours the tokens that the setting of What if keeps.");
    flow(check_width("Evicted"));
    ImGui::Checkbox("Evicted", &evicted_);
    tip("Lists the tokens that the setting of What if evicts although the reference has them among as many "
        "largest.");
  }
  choose_beside(state);
}

void ScatterPanel::draw_figures(PanelContext& context, const ScatterFacts& facts, const ScatterCut& cut) {
  AppState& state = context.state;
  const ScatterFacts* pinned = pinned_.beside(shown_);
  const auto share = [](double value) {
    return std::isnan(value) ? number_text(value) : fmt::format("{:.3f}", value);
  };
  // "0.765 (pinned 0.8)", or the number alone.
  const auto both = [&](double own, const auto& of_pinned) {
    return pinned != nullptr ? fmt::format("{} (pinned {})", share(own), share(of_pinned(*pinned)))
                             : share(own);
  };
  constexpr AgreementFigure kSpearman = AgreementFigure::spearman;
  told_figure(
      std::string(facts_of(kSpearman).title).c_str(),
      both(facts.agreement[kSpearman], [](const ScatterFacts& other) { return other.agreement[kSpearman]; }),
      facts_of(kSpearman).what);
  const std::string recall = both(cut.recall(), [&](const ScatterFacts& other) {
    return scatter_cut(other, other.scatter, cut.k).recall();
  });
  const std::string at = fmt::format("Recall at {}", cut.k);
  flow(figure_width(at.c_str(), recall));
  told_figure(at.c_str(), recall,
              "Share of what the exact order keeps at the budget that the score keeps, too");
  const std::string words = fmt::format("{} lost, {} wasted", cut.lost, cut.wasted());
  flow(ImGui::CalcTextSize(words.c_str()).x);
  dim_text(words);
  tip(fmt::format(
      "Lines: the budget of all panels, {} tokens. Lost: {} keeps them and {} does not; wasted: the "
      "other way round.{}",
      cut.k, name_of(facts.reference), name_of(facts.score),
      facts.scatter.left_out > 0 ? fmt::format("\nNot shown, for want of a finite value of both: {}.",
                                               counted(facts.scatter.left_out, "token"))
                                 : ""));
  const std::string& whose = shown_.head().whose;
  const float room = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x -
                     ImGui::GetItemRectMax().x - ImGui::GetStyle().ItemSpacing.x;
  const bool low = ImGui::GetContentRegionAvail().y < theme().px(ScatterPlot::kLow);
  if (!whose.empty() && (!low || ImGui::CalcTextSize(whose.c_str()).x <= room)) {
    flow(ImGui::CalcTextSize(whose.c_str()).x);
    dim_text(whose);
    tip("Whose values these are. The head bar selects one query head of the group.");
  }
  if (pinned != nullptr) {
    flow(theme().px(120));
    draw_pinned_key(*state.pinned.run(), ScatterPlot::pinned_color());
    tip(fmt::format(
        "The pinned run's points, with a line from there to each token that is chosen, else to the "
        "{} that stand farthest from where they stood",
        ScatterPair::kMoved));
  }
  const auto& chosen = state.selection().tokens;
  if (kept_ && kept_tokens_ >= 0) {
    const std::string text = fmt::format("kept {}", kept_tokens_);
    flow(ImGui::CalcTextSize(text.c_str()).x + theme().px(16));
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float middle = at.y + ImGui::GetTextLineHeight() / 2;
    ImGui::GetWindowDrawList()->AddCircleFilled({at.x + theme().px(4), middle}, theme().px(3.4F),
                                                theme().series[2]);
    ImGui::Dummy({theme().px(9), 0});
    ImGui::SameLine(0, theme().px(3));
    dim_text(text);
  }
  if (!chosen.empty()) {
    const std::string text = fmt::format("{} selected", chosen.size());
    flow(ImGui::CalcTextSize(text.c_str()).x + theme().px(50));
    colored_text(text, theme().accent);
    ImGui::SameLine(0, theme().px(5));
    const HiddenDraw controls(context.figure);
    if (small_button("clear")) state.select_tokens({});
  }
  if (shown_.pending()) busy_mark();
}

std::vector<std::uint8_t> ScatterPanel::classes(PanelContext& context, const ScatterFacts& facts) {
  const AppState& state = context.state;
  std::vector<std::uint8_t> of(facts.head->l, 0);
  kept_tokens_ = -1;
  if (kept_ && !shown_.pending() && state.run()->dump() != nullptr) {
    const Answer<WhatIf> answer = ask_kept_set(context, state.setting(), facts.head->layer,
                                               facts.head->kv_head, Urgency::soon, "scatter");
    if (answer && answer->kept.size() == of.size()) {
      for (std::size_t p = 0; p < of.size(); ++p) of[p] = answer->kept[p];
      kept_tokens_ = answer->tokens;
    }
  }
  for (const Index token : state.selection().tokens)
    if (token < facts.head->l) of[token] = 2;
  return of;
}

/// The points of both runs, where one is pinned and its facts are there; null else.
std::shared_ptr<const ScatterPair> ScatterPanel::pair(PanelContext& context) {
  const ScatterFacts *own = shown_.get(), *pinned = pinned_.beside(shown_);
  if (pinned == nullptr || pinned->score != own->score || pinned->axes != own->axes ||
      pinned->reference != own->reference || pinned->head->l != own->head->l)
    return nullptr;
  const JobRequest request{.key = {shown_.run(), "scatter_pair", pinned_.run(), own->score, own->reference,
                                   own->axes, shown_.head().key},
                           .title = "Points of two runs, " + shown_.head().title()};
  return context.queue
      .ask<ScatterPair>(request, [own = shown_.shared(), pinned = pinned_.shared()](
                                     JobControl&) { return scatter_pair(*own, *pinned); })
      .value;
}

std::string ScatterPanel::figure_title(PanelContext& context) const {
  const Comparison& c = context.state.comparison;
  const std::shared_ptr<const Run> pinned = context.state.subtracted();
  return fmt::format("{} against {}, a point a token{}{}", name_of(c.score), name_of(c.reference),
                     kept_ ? ", kept ones coloured" : "",
                     pinned && pinned_.beside(shown_) ? ", faint: " + pinned->name() : "");
}

std::vector<std::string> ScatterPanel::figure_settings(PanelContext& context) const {
  AppState& state = context.state;
  std::vector<std::string> lines;
  if (kept_ || lists(state))
    lines.push_back(evict_options_text(state.setting(), find_score(state.scores, state.setting().score)));
  return with_pinned(std::move(lines), state, pinned_.beside(shown_) != nullptr, "beside");
}

std::string ScatterPanel::svg(PanelContext& context) const {
  const ScatterFacts* facts = shown_.of(context.state.run().get());
  if (facts == nullptr) return {};
  const bool ranks = facts->axes == ScatterAxes::rank;
  report::ScatterPlot plot;
  plot.id = "scatter";
  plot.title = figure_title(context);
  for (const ScatterPoint& point : facts->scatter.points) {
    plot.tokens.push_back(static_cast<double>(point.token));
    const auto p = static_cast<std::size_t>(point.token);
    plot.across.push_back(ranks ? facts->score_place[p] + 1 : facts->score_of(point.token));
    plot.up.push_back(ranks ? facts->reference_place[p] + 1 : facts->reference_of(point.token));
  }
  const auto axis = [&](TokenMetric metric, const ScatterAxis& of, const std::vector<double>& values) {
    const std::string label = fmt::format("{}{}", name_of(metric), ranks ? ", rank (1: largest)" : "");
    return of.kind == ScaleKind::log && !ranks ? log_axis(label, values) : linear_axis(label, values, false);
  };
  plot.x = axis(facts->score, facts->scatter.x, plot.across);
  plot.y = axis(facts->reference, facts->scatter.y, plot.up);
  constexpr AgreementFigure kSpearman = AgreementFigure::spearman;
  plot.corner = fmt::format("{} {:.3f}", facts_of(kSpearman).title, facts->agreement[kSpearman]);
  return report::svg_of(plot);
}

std::string ScatterPanel::csv(PanelContext& context) const {
  const ScatterFacts* facts = shown_.of(context.state.run().get());
  if (facts == nullptr) return {};
  if (lists(context.state)) return list_.csv(context.state);
  const ComparedHead& head = shown_.head();
  const ScatterFacts* pinned = pinned_.beside(shown_);
  std::string header = fmt::format("layer,kv_head,query_head,token,{0},{1},selected", name_of(facts->score),
                                   name_of(facts->reference));
  if (pinned != nullptr)
    header += fmt::format(",pinned_{},pinned_{}", name_of(pinned->score), name_of(pinned->reference));
  CsvTable table(header);
  const std::vector<Index>& chosen = context.state.selection().tokens;
  for (Index p = 0; p < facts->head->l; ++p) {
    table.add(head.layer).add(head.kv_head).add(head.query_head).add(p);
    table.add(facts->score_of(p)).add(facts->reference_of(p));
    table.add(std::binary_search(chosen.begin(), chosen.end(), p));
    if (pinned != nullptr) table.add(pinned->score_of(p)).add(pinned->reference_of(p));
    table.end_row();
  }
  return table.text();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::scatter>() {
  return std::make_unique<ScatterPanel>();
}

}  // namespace kvreplay::viewer
