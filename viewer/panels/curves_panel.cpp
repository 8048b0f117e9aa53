#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curve_modes.hpp"
#include "viewer/panels/curve_rows.hpp"
#include "viewer/panels/make_panels.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/questions.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kPoints = 256;  // of a curve as it is drawn

MetricSet hidden_at_first() {
  MetricSet hidden;
  for (const TokenMetric metric : all_token_metrics())
    if (kind_of(metric) != MetricKind::score) hidden.insert(metric);
  return hidden;
}

/// What is won and lost at every budget when a score's largest are kept, all scores in one plot.
class CurvesPanel final : public Panel {
 public:
  PanelKind kind() const override { return PanelKind::curves; }
  void draw(PanelContext& context) override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  bool ask(PanelContext& context);
  void draw_controls(AppState& state, const MetricSet& available);
  void draw_plot(AppState& state, ImVec2 size);
  void draw_hovered(const Plot& plot) const;
  void draw_table(AppState& state);
  bool shown(TokenMetric score) const { return score == shown_->reference || !hidden_.contains(score); }
  /// The budget line: that of What if where it counts tokens, else this panel's own.
  Index budget(const AppState& state) const;
  void set_budget(AppState& state, Index k);

  CurveMode mode_ = CurveMode::recall;
  std::array<bool, kCurveModes> log_{false, false, true};
  MetricSet hidden_ = hidden_at_first();
  Index own_budget_ = 0;  // 0: what the setting's sigma keeps
  PlotView view_;
  std::string axes_;  // what view_ belongs to
  std::shared_ptr<const ScoreCurves> shown_;
  std::string shown_run_;
  Index layer_ = 0, kv_head_ = 0;  // of shown_
  bool pending_ = false;
  std::optional<TokenMetric> pointed_, pointed_next_;  // under the mouse, in the plot or in the table
};

nlohmann::json CurvesPanel::save() const {
  nlohmann::json hidden = nlohmann::json::array(), log = nlohmann::json::array();
  for (const TokenMetric metric : all_token_metrics())
    if (hidden_.contains(metric)) hidden.push_back(name_of(metric));
  for (const bool one : log_) log.push_back(one);
  return {{"mode", name_of(mode_)}, {"log_y", log}, {"hidden", hidden}, {"budget", own_budget_}};
}

void CurvesPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  const auto find = [&](const char* key) { return json.contains(key) ? json[key] : nlohmann::json(); };
  if (const auto mode = find("mode"); mode.is_string())
    mode_ = curve_mode_named(mode.get<std::string>()).value_or(mode_);
  if (const auto log = find("log_y"); log.is_array())
    for (std::size_t i = 0; i < std::min(log.size(), log_.size()); ++i)
      if (log[i].is_boolean()) log_[i] = log[i].get<bool>();
  if (const auto hidden = find("hidden"); hidden.is_array()) {
    hidden_ = {};
    for (const auto& name : hidden)
      if (const auto metric = name.is_string() ? token_metric_named(name.get<std::string>()) : std::nullopt)
        hidden_.insert(*metric);
  }
  if (const auto own = find("budget"); own.is_number_integer())
    own_budget_ = std::clamp<Index>(own.get<Index>(), 0, Index{1} << 30);
}

Index CurvesPanel::budget(const AppState& state) const {
  const WhatIfSettings& setting = state.setting_a;
  Index k = setting.budget;
  if (setting.sigma_budget)
    k = own_budget_ > 0 ? own_budget_ : kept_tokens(setting.sigma, shown_->n, setting.semantics);
  return std::clamp<Index>(k, 1, shown_->n);
}

void CurvesPanel::set_budget(AppState& state, Index k) {
  own_budget_ = std::clamp<Index>(k, 1, shown_->n);
  if (!state.setting_a.sigma_budget) state.setting_a.budget = own_budget_;
}

void CurvesPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const std::shared_ptr<const Run>& run = state.run();
  if (run == nullptr) return hint("Open a dump or a result folder.");
  const MetricSet available = available_metrics(*run);
  if (available.empty())
    return hint(
        fmt::format("These results hold no token metrics, and there is no dump to compute them from: {}.",
                    run->why_no_dump()));
  draw_controls(state, available);
  if (!available.contains(state.comparison.reference))
    return hint(fmt::format("This run has no {}. Choose another reference above.",
                            name_of(state.comparison.reference)));
  if (!ask(context)) return;
  if (shown_->n == 0) return hint("There is no token to keep.");
  pointed_ = std::exchange(pointed_next_, std::nullopt);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (room.x < t.px(300)) {
    draw_plot(state, {room.x, std::max(room.y * 0.6F, room.y - t.px(190))});
    draw_table(state);
    return;
  }
  const float table = std::clamp(room.x * 0.41F, t.px(150), t.px(218));
  const ImVec2 at = ImGui::GetCursorPos();
  draw_plot(state, {room.x - table - t.px(4), room.y});
  ImGui::SetCursorPos({at.x + room.x - table, at.y});
  ImGui::BeginChild("table", {table, room.y});
  draw_table(state);
  ImGui::EndChild();
}

/// Brings shown_ up to date as far as that is known; false where there is nothing to show, having said why.
bool CurvesPanel::ask(PanelContext& context) {
  const AppState& state = context.state;
  const std::shared_ptr<const Run>& run = state.run();
  const Selection& selected = state.selection();
  const TokenMetric reference = state.comparison.reference;
  const Answer<HeadSummary> head = ask_summary(context, selected.layer, selected.kv_head, Urgency::soon);
  Answer<ScoreCurves> answer;
  if (head && head->tokens != nullptr) {
    Question question;
    question.key = fmt::format("{}curves/{}/{}/{}/{}", run->key(), state.comparison.window, selected.layer,
                               selected.kv_head, name_of(reference));
    question.title = fmt::format("Curves against {}, layer {} head {}", name_of(reference), selected.layer,
                                 selected.kv_head);
    question.all_cores = true;
    answer = context.desk.ask<ScoreCurves>(question, [values = head.value, reference](JobControl& job) {
      return score_curves(*values->tokens, values->metrics, reference, values->compared, kPoints,
                          job.workers());
    });
  }
  const std::string& error = head.error.empty() ? answer.error : head.error;
  if (!error.empty()) {
    error_line(error);
    return false;
  }
  pending_ = !answer;
  if (answer) {
    shown_ = answer.value;
    shown_run_ = run->key();
    layer_ = selected.layer;
    kv_head_ = selected.kv_head;
  }
  if (shown_ != nullptr && shown_run_ == run->key()) return true;
  hint("Computing the head's token metrics ...");
  return false;
}

void CurvesPanel::draw_controls(AppState& state, const MetricSet& available) {
  constexpr std::string_view names[] = {"Recall", "Mass", "Loss"};
  auto chosen = static_cast<std::size_t>(mode_);
  ImGui::BeginGroup();
  if (segments("mode", names, chosen)) mode_ = static_cast<CurveMode>(chosen);
  ImGui::EndGroup();
  tip(std::string(meaning_of(mode_)).c_str());
  const float rest = check_width("Log") + ImGui::CalcTextSize("vs").x + theme().px(18);
  flow(theme().px(110) + rest);
  dim_text("vs");
  ImGui::SameLine(0, theme().px(5));
  const float width = (ImGui::GetContentRegionAvail().x - check_width("Log")) / theme().scale - 10;
  choose_metric("##reference", *state.run(), available, state.comparison.reference,
                std::clamp(width, 90.0F, 150.0F));
  flow(check_width("Log"));
  ImGui::Checkbox("Log", &log_[static_cast<std::size_t>(mode_)]);
  tip("Logarithmic y axis.");
}

void CurvesPanel::draw_plot(AppState& state, ImVec2 size) {
  const Theme& t = theme();
  const ScoreCurves& curves = *shown_;
  const bool log = log_[static_cast<std::size_t>(mode_)];
  const std::string axes =
      fmt::format("{}{}/{}/{}", shown_run_, name_of(curves.reference), name_of(mode_), log);
  if (std::exchange(axes_, axes) != axes) view_ = {};

  const std::vector<double> budgets(curves.budgets.begin(), curves.budgets.end());
  const ValueExtent extent = extent_of(curves, mode_, log, [&](TokenMetric score) { return shown(score); });
  PlotAxis y{axis_title(mode_, curves.reference), log, extent.low, extent.high};
  Plot plot("plot", size,
            {"budget (tokens kept)", true, 1, static_cast<double>(std::max<Index>(curves.n, 2))}, y, view_);
  const float fade = pending_ ? 0.45F : 1;
  draw_curve(plot, budgets, chance(curves, mode_), faded(t.faint, fade), Stroke::dotted, 1.2F);
  // The one pointed at lies above the others, the best possible below them.
  std::vector<const ScoreCurves::Curve*> order;
  for (const ScoreCurves::Curve& curve : curves.curves)
    if (shown(curve.score)) order.push_back(&curve);
  const auto depth = [&](const ScoreCurves::Curve* curve) {
    return curve->score == pointed_ ? 2 : curve->score == curves.reference ? 0 : 1;
  };
  std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return depth(a) < depth(b); });
  for (const ScoreCurves::Curve* curve : order) {
    const CurveLook look = look_of(curve->score, curves.reference);
    const bool pointed = curve->score == pointed_;
    draw_curve(plot, budgets, drawn_values(*curve, mode_, log),
               faded(look.color, pointed || !pointed_ ? fade : fade * 0.4F), look.stroke,
               pointed ? 2.6F : 1.5F);
  }
  if (plot.high_corner().x - plot.low_corner().x > t.px(220)) {
    std::vector<NamedCurve> named;
    for (const ScoreCurves::Curve* curve : order)
      named.push_back({std::string(name_of(curve->score)), drawn_values(*curve, mode_, log),
                       faded(look_of(curve->score, curves.reference).color, fade)});
    named.push_back({"chance", chance(curves, mode_), faded(t.dim, fade)});
    label_curves(plot, budgets, named, static_cast<double>(budget(state)));
  }
  draw_hovered(plot);

  auto k = static_cast<double>(budget(state));
  if (plot.drag_vertical("budget", k, t.accent)) set_budget(state, static_cast<Index>(std::lround(k)));
  // The line's own button comes last: the mouse is over it or over the plot, never over both.
  if (!plot.hovered()) return;
  const auto at = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, curves.n);
  const float mouse = ImGui::GetMousePos().y;
  float least = t.px(9);
  for (const ScoreCurves::Curve* curve : order) {
    const float distance =
        std::abs(plot.at(static_cast<double>(at), value_of(curve->exact.at(at), mode_)).y - mouse);
    if (distance < least) {
      least = distance;
      pointed_next_ = curve->score;
    }
  }
}

void CurvesPanel::draw_hovered(const Plot& plot) const {
  if (!plot.hovered() || !pointed_) return;
  const ScoreCurves::Curve* curve = shown_->find(*pointed_);
  if (curve == nullptr) return;
  const auto k = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, shown_->n);
  const double value = value_of(curve->exact.at(k), mode_);
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(k), value), theme().px(3.5F),
                               look_of(*pointed_, shown_->reference).color);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(std::string(name_of(*pointed_)).c_str());
  figure(std::string(title_of(mode_)).c_str(), number_text(value));
  figure("budget", budget_text(k, shown_->n));
  ImGui::EndTooltip();
}

void CurvesPanel::draw_table(AppState& state) {
  const Theme& t = theme();
  const Index k = budget(state);
  auto typed = static_cast<int>(k);
  ImGui::AlignTextToFramePadding();
  dim_text("at");
  ImGui::SameLine(0, t.px(5));
  ImGui::SetNextItemWidth(t.px(58));
  ImGui::PushFont(mono_font());
  if (ImGui::InputInt("##budget", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    set_budget(state, typed);
  ImGui::PopFont();
  tip(state.setting_a.sigma_budget
          ? "The budget of the line in tokens. Drag the line, or type and press Enter."
          : "The budget of the line in tokens, that of What if. Drag the line, or type "
            "and press Enter.");
  ImGui::SameLine(0, t.px(5));
  dim_text(fmt::format("= {:.3g} %", 100.0 * static_cast<double>(k) / static_cast<double>(shown_->n)));
  if (pending_) busy_mark();

  draw_curve_rows(*shown_, mode_, k, hidden_, pointed_next_);
}

std::string CurvesPanel::csv(PanelContext& context) const {
  const auto& run = context.state.run();
  if (run == nullptr || shown_ == nullptr || shown_run_ != run->key()) return {};
  std::string text = "layer,kv_head,reference,score,budget,recall,mass,loss\n";
  for (const ScoreCurves::Curve& curve : shown_->curves)
    for (std::size_t i = 0; i < shown_->budgets.size(); ++i)
      text += fmt::format("{},{},{},{},{},{},{},{}\n", layer_, kv_head_, name_of(shown_->reference),
                          name_of(curve.score), shown_->budgets[i], curve.recall[i], curve.mass[i],
                          curve.loss[i]);
  return text;
}

}  // namespace

std::unique_ptr<Panel> make_curves_panel() { return std::make_unique<CurvesPanel>(); }

}  // namespace kvreplay::viewer
