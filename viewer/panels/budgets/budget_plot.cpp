#include "viewer/panels/budgets/budget_plot.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// More curves than this are a haze that says nothing.
constexpr Index kMostCurves = 128;
/// Points of a curve, evenly spaced on a log axis.
constexpr double kPointsPerDecade = 80;
/// The axis shows so much of a loss that falls to 0 at the end.
constexpr double kLeastShare = 1e-3;

std::vector<std::size_t> places(std::size_t end) {
  std::vector<std::size_t> found;
  for (double b = 1; b < static_cast<double>(end); b *= std::pow(10.0, 1 / kPointsPerDecade)) {
    const auto place = static_cast<std::size_t>(b);
    if (found.empty() || found.back() != place) found.push_back(place);
  }
  if (end > 1 && (found.empty() || found.back() != end - 1)) found.push_back(end - 1);
  return found;
}

}  // namespace

void BudgetPlot::take_curves(const BudgetPlotContent& content, BudgetFigures& source) {
  const Key key(content.key, content.heads > kMostCurves ? content.selected : Index{-1});
  if (key_ == key) return;
  key_ = key;
  curves_.assign(content.heads, {});
  low_ = INFINITY;
  high_ = 0;
  for (Index head = 0; head < content.heads; ++head) {
    if (content.heads > kMostCurves && head != content.selected) continue;
    const std::vector<double>& loss = source.loss(head);
    if (loss.size() < 2) continue;
    l_ = std::ssize(loss) - 1;
    Curve& curve = curves_[head];
    for (const std::size_t b : places(loss.size())) {
      curve.budgets.push_back(static_cast<double>(b));
      curve.losses.push_back(loss[b]);
    }
    high_ = std::max(high_, loss[1]);
    for (const double value : curve.losses)
      if (value > loss[1] * kLeastShare) low_ = std::min(low_, value);
  }
  if (!(high_ > 0)) high_ = 1;
  low_ = std::clamp(low_, high_ * kLeastShare, high_ * 0.5);
}

void BudgetPlot::draw(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source) {
  const Theme& t = theme();
  take_curves(content, source);
  const auto selected = static_cast<std::size_t>(content.selected);
  if (selected >= curves_.size() || curves_[selected].budgets.empty()) {
    ImGui::BeginChild("no curve", size);
    hint(source.pending() || source.missing() > 0 ? "The selected head's loss curve is being computed."
                                                  : "There is no loss curve of the selected head.");
    ImGui::EndChild();
    return;
  }
  const PlotAxis x{"tokens kept", true, 1, static_cast<double>(std::max<Index>(l_, 2))};
  const PlotAxis y{content.title, true, low_ * 0.8, high_ * 1.25};
  Plot plot("curves", size, x, y, view_);
  for (std::size_t h = 0; h < curves_.size(); ++h)
    if (h != selected) plot.line(curves_[h].budgets, curves_[h].losses, faded(t.faint, 0.45F), 1.0F);
  plot.line(curves_[selected].budgets, curves_[selected].losses, t.text, 1.8F);
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const BudgetPlotContent::Point* near = nullptr;
  float nearest = t.px(9);
  for (const BudgetPlotContent::Point& point : content.points) {
    // The axis begins at one token.
    const ImVec2 at = plot.at(std::max(point.budget, 1.0), point.loss);
    const float radius = t.px(point.chosen ? 5.5F : 4.0F);
    plot.list()->AddCircleFilled(at, radius + t.px(1.5F), t.window);
    plot.list()->AddCircleFilled(at, radius, point.color);
    const float distance = std::hypot(mouse.x - at.x, mouse.y - at.y);
    if (plot.hovered() && distance < nearest) {
      nearest = distance;
      near = &point;
    }
  }
  if (!plot.hovered()) return;
  ImGui::BeginTooltip();
  if (near != nullptr) {
    ImGui::TextUnformatted(shown_name(near->method).c_str());
    figure("budget", fmt::format("{:.0f}", near->budget));
    figure("loss", number_text(near->loss));
  } else {
    const std::vector<double>& loss = source.loss(content.selected);
    const auto budget = static_cast<std::size_t>(
        std::clamp(std::round(plot.x_of(mouse.x)), 0.0, static_cast<double>(loss.size() - 1)));
    figure("budget", fmt::format("{}", budget));
    figure("loss", number_text(loss[budget]));
  }
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
