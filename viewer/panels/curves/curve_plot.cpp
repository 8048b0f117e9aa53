#include "viewer/panels/curves/curve_plot.hpp"

#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curves/curve_rows.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// The budget under the mouse.
Index budget_at(const Plot& plot, const CurveFigure& shown) {
  return std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, shown.own->n);
}

void draw_hovered(const Plot& plot, const CurveFigure& shown, std::optional<TokenMetric> pointed) {
  const ScoreCurves::Curve* curve = plot.hovered() && pointed ? shown.own->find(*pointed) : nullptr;
  if (curve == nullptr) return;
  const Index k = budget_at(plot, shown);
  const double value = shown.at(*curve, k);
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(k), value), theme().px(3.5F),
                               look_of(*pointed, shown.own->reference).color);
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(std::string(name_of(*pointed)).c_str());
  figure(std::string(title_of(shown.mode)).c_str(), number_text(value));
  if (const ScoreCurves::Curve* other = shown.pinned_curve(*pointed); other != nullptr && !shown.less)
    figure("pinned", pinned_text(value, value_of(other->exact.at(k), shown.mode)));
  figure("budget", budget_text(k, shown.own->n));
  ImGui::EndTooltip();
}

/// The pinned run's, where they are shown beside the others.
void draw_pinned(Plot& plot, const CurveFigure& shown, std::optional<TokenMetric> pointed, float fade) {
  if (shown.pinned == nullptr || shown.less) return;
  const std::vector<double> budgets(shown.pinned->budgets.begin(), shown.pinned->budgets.end());
  for (const ScoreCurves::Curve& curve : shown.pinned->curves) {
    if (!shown.shows(curve.score)) continue;
    const CurveLook look = look_of(curve.score, shown.own->reference);
    const float opacity = !pointed || pointed == curve.score ? fade : fade * 0.4F;
    draw_curve(plot, budgets, drawn_values(curve, shown.mode, shown.log),
               faded(look.color, opacity * kPinnedOpacity), pinned_stroke(look.stroke), kPinnedThickness);
  }
}

/// The curves that are shown, later ones above earlier ones: the one pointed at lies above the others, the
/// best possible below them.
std::vector<const ScoreCurves::Curve*> by_depth(const CurveFigure& shown,
                                                std::optional<TokenMetric> pointed) {
  std::vector<const ScoreCurves::Curve*> order;
  for (const ScoreCurves::Curve& curve : shown.own->curves)
    if (shown.shows(curve.score)) order.push_back(&curve);
  const auto depth = [&](const ScoreCurves::Curve* curve) {
    return curve->score == pointed ? 2 : curve->score == shown.own->reference ? 0 : 1;
  };
  std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return depth(a) < depth(b); });
  return order;
}

}  // namespace

CurvePlot::Done CurvePlot::draw(ImVec2 size, const CurveFigure& shown, const Key& run, Index budget,
                                std::optional<TokenMetric> pointed, float fade) {
  const Theme& t = theme();
  const ScoreCurves& all = *shown.own;
  const Key axes(run, all.reference, shown.mode, shown.log, shown.less);
  if (std::exchange(axes_, axes) != axes) view_ = {};

  Done done;
  const std::vector<double> budgets(all.budgets.begin(), all.budgets.end());
  const ValueExtent extent = shown.extent();
  Plot plot("plot", size, {"budget (tokens kept)", true, 1, static_cast<double>(std::max<Index>(all.n, 2))},
            {shown.axis(), shown.log, extent.low, extent.high}, view_);
  if (shown.less)
    plot.horizontal(0, t.faint);
  else
    draw_curve(plot, budgets, chance(all, shown.mode), faded(t.faint, fade), Stroke::dotted, 1.2F);
  draw_pinned(plot, shown, pointed, fade);
  const std::vector<const ScoreCurves::Curve*> order = by_depth(shown, pointed);
  for (const ScoreCurves::Curve* curve : order) {
    const CurveLook look = look_of(curve->score, all.reference);
    const bool stands_out = curve->score == pointed;
    draw_curve(plot, budgets, shown.drawn(*curve),
               faded(look.color, stands_out || !pointed ? fade : fade * 0.4F), look.stroke,
               stands_out ? 2.6F : 1.5F);
  }
  if (plot.high_corner().x - plot.low_corner().x > t.px(220)) {
    std::vector<NamedCurve> named;
    for (const ScoreCurves::Curve* curve : order)
      named.push_back({std::string(name_of(curve->score)), shown.drawn(*curve),
                       faded(look_of(curve->score, all.reference).color, fade)});
    if (!shown.less) named.push_back({"chance", chance(all, shown.mode), faded(t.dim, fade)});
    label_curves(plot, budgets, named, static_cast<double>(budget));
  }
  draw_hovered(plot, shown, pointed);

  auto k = static_cast<double>(budget);
  if (plot.drag_vertical("budget", k, t.accent)) done.budget = std::lround(k);
  // The line's own button comes last: the mouse is over it or over the plot, never over both.
  if (!plot.hovered()) return done;
  const Index at = budget_at(plot, shown);
  float least = t.px(9);
  for (const ScoreCurves::Curve* curve : order) {
    const float distance =
        std::abs(plot.at(static_cast<double>(at), shown.at(*curve, at)).y - ImGui::GetMousePos().y);
    if (distance < least) {
      least = distance;
      done.pointed = curve->score;
    }
  }
  return done;
}

}  // namespace kvreplay::viewer
