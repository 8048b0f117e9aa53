#include "viewer/panels/curves/window_plot.hpp"

#include "viewer/model/numbers.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curves/curve_rows.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Of the windows, the place of the one nearest to the mouse.
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
  Plot plot("windows", size, {"window (rows that score)", true, 1, std::max(windows.back(), 2.0)},
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

}  // namespace kvreplay::viewer
