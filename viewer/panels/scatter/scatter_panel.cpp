#include "analysis/options/option_text.hpp"
#include "viewer/model/session_keys.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/questions.hpp"
#include "viewer/panels/scatter/scatter_points.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/command_text.hpp"
#include "viewer/work/csv_table.hpp"
#include "viewer/work/scatter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

std::optional<ScatterPoint> point_of(const Scatter& scatter, std::optional<Index> token) {
  if (!token) return std::nullopt;
  const auto found =
      std::lower_bound(scatter.points.begin(), scatter.points.end(), *token,
                       [](const ScatterPoint& point, Index wanted) { return point.token < wanted; });
  if (found == scatter.points.end() || found->token != *token) return std::nullopt;
  return *found;
}

/// A score against a reference, a point a token of the selected head.
class ScatterPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override { return {{"log_axes", log_}, {"show_kept", kept_}}; }
  void load(const nlohmann::json& json) override;

 private:
  void draw_controls(AppState& state, const MetricSet& available);
  void draw_figures(PanelContext& context, const ScatterFacts& facts);
  void draw_plot(PanelContext& context, const ScatterFacts& facts);
  void take_mouse(AppState& state, const ScatterFacts& facts, const Plot& plot,
                  std::optional<ScatterPoint> under);
  std::vector<std::uint8_t> classes(PanelContext& context, const ScatterFacts& facts);

  bool log_ = true, kept_ = false;
  PlotView view_;
  Key axes_;  // what view_ belongs to
  ComparedFacts<ScatterFacts> shown_;
  std::vector<AxisPoint> lasso_;  // while the button is down
  bool pressed_ = false;
  Index kept_tokens_ = -1;  // of the setting, where it is known
};

void ScatterPanel::load(const nlohmann::json& json) {
  Keys keys(json);
  keys.read("log_axes", log_);
  keys.read("show_kept", kept_);
}

void ScatterPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const std::optional<MetricSet> available = compared_metrics(state);
  if (!available) return;
  {
    const OutOfSight controls(context.figure);
    draw_controls(state, *available);
  }
  const Comparison& c = state.comparison;
  if (!is_there(c.score, *available) || !is_there(c.reference, *available)) return;
  const auto compute = [score = c.score, reference = c.reference, log = log_](
                           std::shared_ptr<const HeadSummary> head, JobControl&) {
    return scatter_facts(std::move(head), score, reference, log);
  };
  const std::string pair = fmt::format("{} against {}", name_of(c.score), name_of(c.reference));
  if (!shown_.look(context, {"scatter", c.score, c.reference, log_}, pair, compute)) return;
  const ScatterFacts& facts = *shown_.get();
  if (facts.scatter.points.empty()) return hint("No token has a finite value of both.");
  draw_figures(context, facts);
  draw_plot(context, facts);
}

void ScatterPanel::draw_controls(AppState& state, const MetricSet& available) {
  const Theme& t = theme();
  Comparison& c = state.comparison;
  const Run& run = *state.run();
  const float rest = check_width("Log") + (run.dump() != nullptr ? check_width("Kept") : 0) +
                     ImGui::CalcTextSize("vs").x + t.px(10) + 2 * ImGui::GetStyle().ItemSpacing.x;
  const float width =
      std::clamp((ImGui::GetContentRegionAvail().x - rest) / 2 / t.scale - 0.5F, 100.0F, 150.0F);
  choose_metric("##score", run, available, c.score, width);
  flow(ImGui::CalcTextSize("vs").x + t.px(width + 5));
  ImGui::AlignTextToFramePadding();
  dim_text("vs");
  ImGui::SameLine(0, t.px(5));
  choose_metric("##reference", run, available, c.reference, width);
  flow(check_width("Log"));
  ImGui::Checkbox("Log", &log_);
  tip("Logarithmic axes, where a metric is not negative. Zeros then lie at the edge.");
  if (run.dump() == nullptr) return;
  flow(check_width("Kept"));
  ImGui::Checkbox("Kept", &kept_);
  tip("Colours the tokens that the setting of What if keeps.");
}

void ScatterPanel::draw_figures(PanelContext& context, const ScatterFacts& facts) {
  AppState& state = context.state;
  for (const AgreementFigure which : {AgreementFigure::spearman, AgreementFigure::recall_10pc}) {
    const double value = facts.agreement[which];
    const std::string name(facts_of(which).title), about(facts_of(which).what);
    const std::string text = std::isnan(value) ? number_text(value) : fmt::format("{:.3f}", value);
    if (which != AgreementFigure::spearman) flow(figure_width(name.c_str(), text));
    ImGui::BeginGroup();
    figure(name.c_str(), text);
    ImGui::EndGroup();
    tip(about.c_str());
  }
  const std::string n = std::to_string(facts.head->l);
  flow(figure_width("n", n));
  ImGui::BeginGroup();
  figure("n", n);
  ImGui::EndGroup();
  if (facts.scatter.left_out > 0)
    tip(fmt::format("Not shown, for want of a finite value of both: {}.",
                    counted(facts.scatter.left_out, "token"))
            .c_str());
  else
    tip("Tokens of the prompt");
  const std::string& whose = shown_.head().whose;
  if (!whose.empty()) {
    flow(ImGui::CalcTextSize(whose.c_str()).x);
    dim_text(whose);
    tip("Whose values these are. The head bar selects one query head of the group.");
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
    const OutOfSight controls(context.figure);
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

void ScatterPanel::draw_plot(PanelContext& context, const ScatterFacts& facts) {
  AppState& state = context.state;
  const Theme& t = theme();
  const Scatter& s = facts.scatter;
  const Key axes(shown_.run(), facts.score, facts.reference, s.x.kind == ScaleKind::log);
  if (std::exchange(axes_, axes) != axes) view_ = {};
  const auto axis = [](const ScatterAxis& from, TokenMetric metric) {
    const double pad = 0.03 * (from.high - from.low);
    return PlotAxis{title_with_unit(metric), from.kind == ScaleKind::log, from.value_at(from.low - pad),
                    from.value_at(from.high + pad)};
  };
  const std::vector<std::uint8_t> styles_by_token = classes(context, facts);
  Plot plot("plot", ImGui::GetContentRegionAvail(), axis(s.x, facts.score), axis(s.y, facts.reference), view_,
            true);
  const ScatterPixels pixels(s, plot);
  if (kTokenMetrics[facts.score].unit == kTokenMetrics[facts.reference].unit &&
      kTokenMetrics[facts.score].unit != MetricUnit::other && s.x.kind == s.y.kind) {
    const double from = std::max(pixels.low().x, pixels.low().y),
                 to = std::min(pixels.high().x, pixels.high().y);
    if (from < to) {
      plot.list()->AddLine(pixels.at({from, from}), pixels.at({to, to}), t.faint, t.px(1));
      const ImVec2 end = pixels.at({to, to});
      plot.label({end.x - t.px(40), end.y + t.px(16)}, "y = x", t.dim);
    }
  }
  const float fade = shown_.pending() ? 0.5F : 1;
  const PointStyle styles[] = {{t.dim, 0.55F * fade}, {t.series[2], 0.8F * fade}, {t.accent, 0.95F * fade}};
  draw_points(plot, s, styles_by_token, styles);

  if (s.x.kind == ScaleKind::log && s.x.at_edge > 0)
    plot.label({plot.low_corner().x + t.px(5), plot.low_corner().y + t.px(3)},
               fmt::format("{} at 0", s.x.at_edge).c_str(), t.dim);
  if (s.y.kind == ScaleKind::log && s.y.at_edge > 0)
    plot.label({plot.high_corner().x, plot.high_corner().y - ImGui::GetTextLineHeight() - t.px(3)},
               fmt::format("{} at 0", s.y.at_edge).c_str(), t.dim);

  std::optional<ScatterPoint> under;
  if (plot.hovered() && lasso_.size() < 2)
    under = nearest(s, pixels.of(ImGui::GetMousePos()), pixels.unit(), t.px(8));
  const auto ring = [&](std::optional<Index> token, ImU32 color) {
    const auto point = point_of(s, token);
    if (!point) return;
    const ImVec2 at = pixels.at(point->at);
    plot.list()->AddCircleFilled(at, t.px(3), color);
    plot.list()->AddCircle(at, t.px(6), color, 0, t.px(1.6F));
  };
  ring(state.selection().token, t.accent);
  ring(under ? std::optional(under->token) : state.hover.token, t.text);
  take_mouse(state, facts, plot, under);
}

void ScatterPanel::take_mouse(AppState& state, const ScatterFacts& facts, const Plot& plot,
                              std::optional<ScatterPoint> under) {
  const Theme& t = theme();
  const ScatterPixels pixels(facts.scatter, plot);
  const ImGuiIO& io = ImGui::GetIO();
  if (plot.hovered() && ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    pressed_ = true;
    lasso_ = {pixels.of(io.MousePos)};
  }
  if (pressed_ && ImGui::IsMouseDown(ImGuiMouseButton_Left)) {
    const ImVec2 last = pixels.at(lasso_.back());
    if (std::hypot(io.MousePos.x - last.x, io.MousePos.y - last.y) >= t.px(3))
      lasso_.push_back(pixels.of(io.MousePos));
  } else if (std::exchange(pressed_, false)) {
    if (lasso_.size() < 3) {
      if (under) state.select_cell(state.selection().row, under->token);
    } else {
      std::vector<Index> tokens = tokens_within(facts.scatter, lasso_);
      const std::vector<Index>& before = state.selection().tokens;
      std::vector<Index> result;
      if (io.KeyShift)
        std::set_union(before.begin(), before.end(), tokens.begin(), tokens.end(),
                       std::back_inserter(result));
      else if (io.KeyCtrl)
        std::set_difference(before.begin(), before.end(), tokens.begin(), tokens.end(),
                            std::back_inserter(result));
      else
        result = std::move(tokens);
      state.select_tokens(std::move(result));
    }
    lasso_.clear();
  }
  if (lasso_.size() > 1) {
    std::vector<ImVec2> line;
    for (const AxisPoint& corner : lasso_) line.push_back(pixels.at(corner));
    plot.list()->AddPolyline(line.data(), static_cast<int>(line.size()), t.accent, ImDrawFlags_None,
                             t.px(1.5F));
    plot.list()->AddLine(line.back(), line.front(), faded(t.accent, 0.4F), t.px(1));
  }
  if (!under) return;
  const Index token = under->token;
  state.next_hover.token = token;
  const std::string text = token_text(state.run()->labels(), token, 24);
  ImGui::BeginTooltip();
  ImGui::Text("token %d", static_cast<int>(token));
  if (!text.empty()) {
    ImGui::SameLine();
    mono_text(text);
  }
  const auto at = static_cast<std::size_t>(token);
  const std::pair<TokenMetric, std::int32_t> lines[] = {{facts.score, facts.score_place[at]},
                                                        {facts.reference, facts.reference_place[at]}};
  for (const auto& [metric, place] : lines) {
    figure(std::string(name_of(metric)).c_str(), number_text((*facts.head->tokens)[metric](0, token)));
    ImGui::SameLine();
    dim_text(fmt::format("rank {} of {}", place + 1, facts.head->l));
  }
  ImGui::EndTooltip();
}

std::string ScatterPanel::figure_title(PanelContext& context) const {
  const Comparison& c = context.state.comparison;
  return fmt::format("{} against {}, a point a token{}", name_of(c.score), name_of(c.reference),
                     kept_ ? ", kept ones coloured" : "");
}

std::vector<std::string> ScatterPanel::figure_settings(PanelContext& context) const {
  const AppState& state = context.state;
  if (!kept_) return {};
  return {evict_options_text(state.setting(), find_score(state.scores, state.setting().score))};
}

std::string ScatterPanel::csv(PanelContext& context) const {
  const ScatterFacts* facts = shown_.of(context.state.run().get());
  if (facts == nullptr) return {};
  const ComparedHead& head = shown_.head();
  CsvTable table(fmt::format("layer,kv_head,query_head,token,{},{},selected", name_of(facts->score),
                             name_of(facts->reference)));
  const std::vector<Index>& chosen = context.state.selection().tokens;
  for (Index p = 0; p < facts->head->l; ++p)
    table.row(head.layer, head.kv_head, head.query_head, p, facts->score_of(p), facts->reference_of(p),
              std::binary_search(chosen.begin(), chosen.end(), p));
  return table.text();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::scatter>() {
  return std::make_unique<ScatterPanel>();
}

}  // namespace kvreplay::viewer
