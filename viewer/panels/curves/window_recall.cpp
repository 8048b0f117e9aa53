#include "viewer/panels/curves/window_recall.hpp"

#include "analysis/options/option.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curves/curve_modes.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

namespace {

/// The place of the window nearest to the mouse.
std::size_t window_at(const Plot& plot, const std::vector<double>& windows) {
  const float mouse = ImGui::GetMousePos().x;
  const auto away = [&](double window) { return std::abs(plot.at(window, 0).x - mouse); };
  return static_cast<std::size_t>(std::min_element(windows.begin(), windows.end(),
                                                   [&](double a, double b) { return away(a) < away(b); }) -
                                  windows.begin());
}

void draw_hovered(const Plot& plot, const WindowCurves& shown, const WindowCurves::Curve& curve,
                  std::size_t at) {
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(shown.windows[at]), curve.recall[at]),
                               theme().px(3.5F), look_of(curve.score, shown.reference).color);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(std::string(name_of(curve.score)).c_str());
  figure(fmt::format("recall@{}", shown.k).c_str(), number_text(curve.recall[at]));
  if (!curve.reserved.empty())
    figure(fmt::format("with {} reserved", shown.reserve).c_str(), number_text(curve.reserved[at]));
  figure("window", fmt::format("{}", shown.windows[at]));
  ImGui::EndTooltip();
}

}  // namespace

std::optional<TokenMetric> WindowPlot::draw(ImVec2 size, const WindowCurves& shown, const MetricSet& hidden,
                                            const Key& run, Index window, std::optional<TokenMetric> pointed,
                                            float fade) {
  const Theme& t = theme();
  const Key axes(run, shown.reference);
  if (std::exchange(axes_, axes) != axes) view_ = {};
  const std::vector<double> windows(shown.windows.begin(), shown.windows.end());
  std::vector<const WindowCurves::Curve*> drawn;
  double highest = 0;
  for (const WindowCurves::Curve& curve : shown.curves) {
    if (hidden.contains(curve.score)) continue;
    drawn.push_back(&curve);
    for (const auto* const values : {&curve.recall, &curve.reserved})
      for (const double value : *values) highest = std::max(highest, value);
  }
  Plot plot("windows", size, {"window (queries that score)", true, 1, std::max(windows.back(), 2.0)},
            {fmt::format("recall@{} of {}", shown.k, name_of(shown.reference)), false, 0,
             highest > 0 ? 1.06 * highest : 1.0},
            view_);
  plot.vertical(static_cast<double>(window), t.accent);
  std::vector<NamedCurve> named;
  for (const WindowCurves::Curve* const curve : drawn) {
    const CurveLook look = look_of(curve->score, shown.reference);
    const bool stands_out = curve->score == pointed;
    const ImU32 color = faded(look.color, stands_out || !pointed ? fade : fade * 0.4F);
    draw_curve(plot, windows, curve->recall, color, Stroke::solid, stands_out ? 2.6F : 1.5F);
    if (!curve->reserved.empty())
      draw_curve(plot, windows, curve->reserved, color, Stroke::dashed, stands_out ? 2.6F : 1.5F);
    named.push_back({std::string(name_of(curve->score)), curve->recall, faded(look.color, fade)});
  }
  if (plot.high_corner().x - plot.low_corner().x > t.px(220))
    label_curves(plot, windows, named, static_cast<double>(window));
  if (!plot.hovered() || drawn.empty()) return std::nullopt;
  const std::size_t at = window_at(plot, windows);
  const auto away = [&](const WindowCurves::Curve* curve) {
    return std::abs(plot.at(windows[at], curve->recall[at]).y - ImGui::GetMousePos().y);
  };
  const auto* const nearest = *std::min_element(
      drawn.begin(), drawn.end(), [&](const auto* a, const auto* b) { return away(a) < away(b); });
  if (away(nearest) > t.px(9)) return std::nullopt;
  draw_hovered(plot, shown, *nearest, at);
  return nearest->score;
}

void WindowRecall::draw_controls(const AppState& state, MetricSet& hidden) {
  flow(check_width("Windows"));
  if (ImGui::Checkbox("Windows", &shown) && shown)
    for (const TokenMetric exact : {TokenMetric::exact_joint, TokenMetric::exact_remove})
      hidden.erase(exact);  // what the scores stand for on the window
  tip("The recall at the budget over the number of queries that score, from one to the whole prompt. The "
      "table "
      "is of the window that all panels look at.");
  if (!shown) return;
  const float width = theme().px(46);
  flow(width + ImGui::CalcTextSize("reserve").x + theme().px(10));
  text_beside("reserve");
  ImGui::SameLine(0, theme().px(5));
  ImGui::SetNextItemWidth(width);
  auto typed = static_cast<int>(reserve_);
  if (ImGui::InputInt("##reserve", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    reserve_ = std::clamp<Index>(typed, 0, std::max<Index>(state.run()->shape().l - 1, 0));
  tip("So many of the last tokens count as found, inside the budget, whatever a score says of them: dashed.");
}

std::shared_ptr<const WindowCurves> WindowRecall::look(PanelContext& context,
                                                       const Question& question) const {
  const std::shared_ptr<const Run> run = context.run();
  if (run->dump() == nullptr) {
    hint_no_dump(context.state,
                 fmt::format("Recall over windows is computed from the dump: {}.", run->why_no_dump()));
    return nullptr;
  }
  const ComparedHead& head = question.head;
  const Key of_head(head.layer, head.kv_head, head.query_head);
  const auto metrics = context.desk.ask<WindowMetrics>(
      {.key = {run->key(), "window_metrics", of_head},
       .title = fmt::format("Token metrics on every window, {}", head.title()),
       .all_cores = true},
      [run, layer = head.layer, kv_head = head.kv_head, query_head = head.query_head](JobControl& job) {
        return window_metrics(*run->head(layer, kv_head), available_metrics(*run), query_head, job.compute());
      });
  Answer<WindowCurves> found;
  if (metrics)
    found = context.desk.ask<WindowCurves>(
        {.key = {run->key(), "window_curves", of_head, question.reference, question.k, reserve_},
         .title = fmt::format("Recall over windows, {}", head.title()),
         .slot = {run->key(), "window_curves", of_head, question.reference}},
        [values = metrics.value, reference = question.reference, k = question.k, reserve = reserve_](
            JobControl& job) { return window_curves(*values, reference, k, reserve, job.workers()); });
  if (!found) {
    draw_no_facts(metrics.error.empty() ? found.error : metrics.error);
  } else if (found->windows.empty()) {
    hint("The dump holds no query of the prompt.");
    return nullptr;
  }
  return found.value;
}

std::optional<TokenMetric> WindowRecall::draw(PanelContext& context, ImVec2 size, const Question& question,
                                              const MetricSet& hidden, std::optional<TokenMetric> pointed,
                                              float fade) {
  std::optional<TokenMetric> under_mouse;
  ImGui::BeginChild("windows", size);
  curves_ = look(context, question);
  if (curves_ != nullptr)
    under_mouse = plot_.draw(size, *curves_, hidden, context.run()->key(), context.state.comparison.window,
                             pointed, fade);
  ImGui::EndChild();
  return under_mouse;
}

std::string WindowRecall::title(TokenMetric reference) const {
  const std::string reserved =
      reserve_ > 0 ? fmt::format(", dashed: the last {} reserved", counted(reserve_, "token")) : "";
  return fmt::format("Recall of {} over windows{}", name_of(reference), reserved);
}

std::string WindowRecall::csv(const ComparedHead& head) const {
  if (curves_ == nullptr) return {};
  CsvTable table("layer,kv_head,query_head,reference,score,budget,window,reserve,recall");
  for (const WindowCurves::Curve& curve : curves_->curves)
    for (const auto& [reserve, values] :
         {std::pair(Index{0}, &curve.recall), std::pair(curves_->reserve, &curve.reserved)})
      for (std::size_t i = 0; i < values->size(); ++i)
        table.row(head.layer, head.kv_head, head.query_head, name_of(curves_->reference),
                  name_of(curve.score), curves_->k, curves_->windows[i], reserve, (*values)[i]);
  return table.text();
}

void WindowRecall::keep(SessionFields& fields) {
  fields.field("shown", shown);
  fields.number("reserve", reserve_, Index{0}, Index{1} << 30);
}

}  // namespace kvreplay::viewer
