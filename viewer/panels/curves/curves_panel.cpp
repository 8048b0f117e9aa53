#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curves/curve_modes.hpp"
#include "viewer/panels/curves/curve_rows.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/csv_table.hpp"

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
  for (const TokenMetric metric : kTokenMetrics.all())
    if (kTokenMetrics[metric].kind != MetricKind::score) hidden.insert(metric);
  return hidden;
}

/// What is won and lost at every budget when a score's largest are kept, all scores in one plot.
class CurvesPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  bool look(PanelContext& context);
  const ScoreCurves& curves() const { return *shown_.get(); }
  void draw_controls(AppState& state, const MetricSet& available);
  void draw_plot(AppState& state, ImVec2 size);
  void draw_hovered(const Plot& plot) const;
  void edit_budget(AppState& state, Index k);
  void draw_table(PanelContext& context);
  bool shown(TokenMetric score) const { return score == curves().reference || !hidden_.contains(score); }
  /// The budget line: that of What if where it counts tokens, else a line of its own.
  Index budget(const AppState& state) const;
  void set_budget(AppState& state, Index k);

  CurveMode mode_ = CurveMode::recall;
  std::array<bool, kCurveModes> log_{false, false, true};
  MetricSet hidden_ = hidden_at_first();
  PlotView view_;
  Key axes_;  // what view_ belongs to
  ComparedFacts<ScoreCurves> shown_;
  std::optional<TokenMetric> pointed_, pointed_next_;  // under the mouse, in the plot or in the table
};

nlohmann::json CurvesPanel::save() const {
  nlohmann::json hidden = nlohmann::json::array(), log = nlohmann::json::array();
  for (const TokenMetric metric : kTokenMetrics.all())
    if (hidden_.contains(metric)) hidden.push_back(name_of(metric));
  for (const bool one : log_) log.push_back(one);
  return {{"mode", name_of(mode_)}, {"log_y", log}, {"hidden", hidden}};
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
      if (const auto metric = name.is_string() ? kTokenMetrics.named(name.get<std::string>()) : std::nullopt)
        hidden_.insert(*metric);
  }
}

Index CurvesPanel::budget(const AppState& state) const {
  return std::clamp<Index>(state.budget.tokens(curves().n, state.setting_a.semantics), 1, curves().n);
}

/// A line stands at a number of tokens, which a share would miss.
void CurvesPanel::set_budget(AppState& state, Index k) {
  state.budget.sigma_budget = false;
  state.budget.budget = std::clamp<Index>(k, 1, curves().n);
}

void CurvesPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const std::optional<MetricSet> available = compared_metrics(state);
  if (!available) return;
  {
    const OutOfSight controls(context.figure);
    draw_controls(state, *available);
  }
  if (!is_there(state.comparison.reference, *available) || !look(context)) return;
  if (curves().n == 0) return hint("There is no token to keep.");
  pointed_ = std::exchange(pointed_next_, std::nullopt);

  const Theme& t = theme();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (room.x < t.px(300)) {
    draw_plot(state, {room.x, std::max({room.y * 0.6F, room.y - t.px(190), t.px(150)})});
    draw_table(context);
    return;
  }
  const float table = std::clamp(room.x * 0.41F, t.px(150), t.px(218));
  const ImVec2 at = ImGui::GetCursorPos();
  draw_plot(state, {room.x - table - t.px(4), room.y});
  ImGui::SetCursorPos({at.x + room.x - table, at.y});
  ImGui::BeginChild("table", {table, room.y});
  draw_table(context);
  ImGui::EndChild();
}

bool CurvesPanel::look(PanelContext& context) {
  const TokenMetric reference = context.state.comparison.reference;
  const auto compute = [reference](const std::shared_ptr<const HeadSummary>& head, JobControl& job) {
    return score_curves(*head->tokens, head->metrics, reference, head->compared, kPoints, job.workers());
  };
  return shown_.look(context, fmt::format("curves/{}", name_of(reference)),
                     fmt::format("Curves against {}", name_of(reference)), compute);
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
  ImGui::AlignTextToFramePadding();
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
  const ScoreCurves& all = curves();
  const bool log = log_[static_cast<std::size_t>(mode_)];
  const Key axes(shown_.run(), all.reference, mode_, log);
  if (std::exchange(axes_, axes) != axes) view_ = {};

  const std::vector<double> budgets(all.budgets.begin(), all.budgets.end());
  const ValueExtent extent = extent_of(all, mode_, log, [&](TokenMetric score) { return shown(score); });
  PlotAxis y{axis_title(mode_, all.reference), log, extent.low, extent.high};
  Plot plot("plot", size, {"budget (tokens kept)", true, 1, static_cast<double>(std::max<Index>(all.n, 2))},
            y, view_);
  const float fade = shown_.pending() ? 0.45F : 1;
  draw_curve(plot, budgets, chance(all, mode_), faded(t.faint, fade), Stroke::dotted, 1.2F);
  // The one pointed at lies above the others, the best possible below them.
  std::vector<const ScoreCurves::Curve*> order;
  for (const ScoreCurves::Curve& curve : all.curves)
    if (shown(curve.score)) order.push_back(&curve);
  const auto depth = [&](const ScoreCurves::Curve* curve) {
    return curve->score == pointed_ ? 2 : curve->score == all.reference ? 0 : 1;
  };
  std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return depth(a) < depth(b); });
  for (const ScoreCurves::Curve* curve : order) {
    const CurveLook look = look_of(curve->score, all.reference);
    const bool pointed = curve->score == pointed_;
    draw_curve(plot, budgets, drawn_values(*curve, mode_, log),
               faded(look.color, pointed || !pointed_ ? fade : fade * 0.4F), look.stroke,
               pointed ? 2.6F : 1.5F);
  }
  if (plot.high_corner().x - plot.low_corner().x > t.px(220)) {
    std::vector<NamedCurve> named;
    for (const ScoreCurves::Curve* curve : order)
      named.push_back({std::string(name_of(curve->score)), drawn_values(*curve, mode_, log),
                       faded(look_of(curve->score, all.reference).color, fade)});
    named.push_back({"chance", chance(all, mode_), faded(t.dim, fade)});
    label_curves(plot, budgets, named, static_cast<double>(budget(state)));
  }
  draw_hovered(plot);

  auto k = static_cast<double>(budget(state));
  if (plot.drag_vertical("budget", k, t.accent)) set_budget(state, static_cast<Index>(std::lround(k)));
  // The line's own button comes last: the mouse is over it or over the plot, never over both.
  if (!plot.hovered()) return;
  const auto at = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, all.n);
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
  const ScoreCurves::Curve* curve = curves().find(*pointed_);
  if (curve == nullptr) return;
  const auto k = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, curves().n);
  const double value = value_of(curve->exact.at(k), mode_);
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(k), value), theme().px(3.5F),
                               look_of(*pointed_, curves().reference).color);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(std::string(name_of(*pointed_)).c_str());
  figure(std::string(title_of(mode_)).c_str(), number_text(value));
  figure("budget", budget_text(k, curves().n));
  ImGui::EndTooltip();
}

void CurvesPanel::edit_budget(AppState& state, Index k) {
  const Theme& t = theme();
  auto typed = static_cast<int>(k);
  ImGui::AlignTextToFramePadding();
  dim_text("at");
  ImGui::SameLine(0, t.px(5));
  ImGui::SetNextItemWidth(t.px(58));
  ImGui::PushFont(mono_font());
  if (ImGui::InputInt("##budget", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    set_budget(state, typed);
  ImGui::PopFont();
  tip("The budget of all panels, in tokens. Drag the line, or type and press Enter.");
  ImGui::SameLine(0, t.px(5));
  dim_text(fmt::format("= {:.3g} %", 100.0 * static_cast<double>(k) / static_cast<double>(curves().n)));
}

void CurvesPanel::draw_table(PanelContext& context) {
  AppState& state = context.state;
  const Index k = budget(state);
  if (context.figure)
    dim_text(fmt::format("at {}", budget_text(k, curves().n)));
  else
    edit_budget(state, k);
  if (shown_.pending()) busy_mark();

  const std::string& whose = shown_.head().whose;
  if (!whose.empty()) {
    ImGui::PushTextWrapPos(0);
    dim_text(whose);
    ImGui::PopTextWrapPos();
    tip("Whose values these are. The head bar selects one query head of the group.");
  }
  draw_curve_rows(curves(), mode_, k, hidden_, pointed_next_);
}

std::string CurvesPanel::figure_title(PanelContext& context) const {
  return fmt::format("{} of every score against {}, by budget", title_of(mode_),
                     name_of(context.state.comparison.reference));
}

std::string CurvesPanel::csv(PanelContext& context) const {
  const ScoreCurves* all = shown_.of(context.state.run().get());
  if (all == nullptr) return {};
  const ComparedHead& head = shown_.head();
  CsvTable table("layer,kv_head,query_head,reference,score,budget,recall,mass,loss");
  for (const ScoreCurves::Curve& curve : all->curves)
    for (std::size_t i = 0; i < all->budgets.size(); ++i)
      table.row(head.layer, head.kv_head, head.query_head, name_of(all->reference), name_of(curve.score),
                all->budgets[i], curve.recall[i], curve.mass[i], curve.loss[i]);
  return table.text();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::curves>() {
  return std::make_unique<CurvesPanel>();
}

}  // namespace kvreplay::viewer
