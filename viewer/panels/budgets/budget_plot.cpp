#include "viewer/panels/budgets/budget_plot.hpp"

#include "viewer/panels/curve_lines.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace kvreplay::viewer {
namespace {

/// More curves than this are a haze that says nothing.
constexpr Index kMostCurves = 128;
/// Points of a curve, evenly spaced on a log axis.
constexpr double kPointsPerDecade = 80;
/// The axis shows so much of a loss that falls to 0 at the end.
constexpr double kLeastLossShare = 1e-3;

std::vector<std::size_t> places(std::size_t end) {
  std::vector<std::size_t> found;
  for (double b = 1; b < static_cast<double>(end); b *= std::pow(10.0, 1 / kPointsPerDecade)) {
    const auto place = static_cast<std::size_t>(b);
    if (found.empty() || found.back() != place) found.push_back(place);
  }
  if (end > 1 && (found.empty() || found.back() != end - 1)) found.push_back(end - 1);
  return found;
}

/// The method whose point is near the mouse; null where none is. Draws all of them.
const BudgetPlotContent::Point* draw_points(
    Plot& plot, const BudgetPlotContent& content,
    const std::function<ImVec2(const BudgetPlotContent::Point&)>& at) {
  const Theme& t = theme();
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const BudgetPlotContent::Point* near = nullptr;
  float nearest = t.px(9);
  for (const BudgetPlotContent::Point& point : content.points) {
    const ImVec2 pixel = at(point);
    const float radius = t.px(point.chosen ? 5.5F : 4.0F);
    plot.list()->AddCircleFilled(pixel, radius + t.px(1.5F), t.window);
    plot.list()->AddCircleFilled(pixel, radius, point.color);
    const float distance = std::hypot(mouse.x - pixel.x, mouse.y - pixel.y);
    if (plot.hovered() && distance < nearest) {
      nearest = distance;
      near = &point;
    }
  }
  return near;
}

void point_tip(const BudgetPlotContent::Point& point) {
  ImGui::TextUnformatted(shown_name(point.method).c_str());
  figure("budget", fmt::format("{:.0f}", point.budget));
  figure("loss", number_text(point.loss));
}

}  // namespace

void BudgetPlot::take_curves(const BudgetPlotContent& content, BudgetFigures& source) {
  const Key key(content.key, content.heads > kMostCurves ? content.selected : Index{-1});
  if (key_ == key) return;
  key_ = key;
  curves_.assign(content.heads, {});
  kept_.assign(content.heads, {});
  low_ = INFINITY;
  high_ = 0;
  for (Index head = 0; head < content.heads; ++head) {
    if (content.heads > kMostCurves && head != content.selected) continue;
    kept_[head] = source.kept(head);
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
      if (value > loss[1] * kLeastLossShare) low_ = std::min(low_, value);
  }
  if (!(high_ > 0)) high_ = 1;
  low_ = std::clamp(low_, high_ * kLeastLossShare, high_ * 0.5);
}

void BudgetPlot::draw(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source) {
  take_curves(content, source);
  const auto selected = static_cast<std::size_t>(content.selected);
  const bool known = selected < curves_.size() &&
                     !(shows_shares ? kept_[selected].empty() : curves_[selected].budgets.empty());
  if (known) return shows_shares ? draw_shares(size, content) : draw_losses(size, content, source);
  ImGui::BeginChild("no curve", size);
  const bool waits = source.pending() || source.missing() > 0;
  hint(shows_shares ? waits ? "The heads' loss curves are being computed."
                            : "The results have no profile of lu under this order."
       : waits      ? "The selected head's loss curve is being computed."
                    : "There is no loss curve of the selected head.");
  ImGui::EndChild();
}

void BudgetPlot::draw_losses(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source) {
  const Theme& t = theme();
  const auto selected = static_cast<std::size_t>(content.selected);
  const PlotAxis x{"tokens kept", true, 1, static_cast<double>(std::max<Index>(l_, 2))};
  const PlotAxis y{content.title, true, low_ * 0.8, high_ * 1.25};
  Plot plot("curves", size, x, y, view_);
  for (std::size_t h = 0; h < curves_.size(); ++h)
    if (h != selected) plot.line(curves_[h].budgets, curves_[h].losses, faded(t.faint, 0.45F), 1.0F);
  plot.line(curves_[selected].budgets, curves_[selected].losses, t.text, 1.8F);
  // The axis begins at one token.
  const auto* const near = draw_points(
      plot, content, [&](const auto& point) { return plot.at(std::max(point.budget, 1.0), point.loss); });
  if (!plot.hovered()) return;
  ImGui::BeginTooltip();
  if (near != nullptr) {
    point_tip(*near);
  } else {
    const std::vector<double>& loss = source.loss(content.selected);
    const auto budget = static_cast<std::size_t>(std::clamp(std::round(plot.x_of(ImGui::GetIO().MousePos.x)),
                                                            0.0, static_cast<double>(loss.size() - 1)));
    figure("budget", fmt::format("{}", budget));
    figure("loss", number_text(loss[budget]));
  }
  ImGui::EndTooltip();
}

void BudgetPlot::draw_shares(ImVec2 size, const BudgetPlotContent& content) {
  const Theme& t = theme();
  const std::vector<double>& mine = kept_[content.selected];
  std::vector<double> sigmas(mine.size());
  for (std::size_t i = 0; i < sigmas.size(); ++i) sigmas[i] = BudgetProfile::sigma(static_cast<Index>(i));
  Plot plot("shares", size, {"sigma: share of all tokens evicted", false, 0, 1},
            {fmt::format("share kept by lu, {}", content.head), false, 0, 1.02}, shares_view_);
  const double ends[] = {0, 1}, even[] = {1, 0};
  draw_curve(plot, ends, even, t.faint, Stroke::dashed, 1.2F);
  for (std::size_t h = 0; h < kept_.size(); ++h)
    if (h != static_cast<std::size_t>(content.selected) && !kept_[h].empty())
      plot.line(sigmas, kept_[h], faded(t.faint, 0.45F), 1.0F);
  plot.line(sigmas, mine, t.text, 1.8F);
  plot.vertical(content.sigma, faded(t.faint, 0.8F));
  const auto l = static_cast<double>(std::max<Index>(content.l, 1));
  const auto* const near =
      draw_points(plot, content, [&](const auto& point) { return plot.at(content.sigma, point.budget / l); });
  if (!plot.hovered()) return;
  ImGui::BeginTooltip();
  if (near != nullptr) {
    point_tip(*near);
  } else {
    const auto at =
        static_cast<std::size_t>(std::clamp(std::round(100 * plot.x_of(ImGui::GetIO().MousePos.x)) - 1, 0.0,
                                            static_cast<double>(mine.size() - 1)));
    figure("sigma", fmt::format("{:.2f}", sigmas[at]));
    figure("kept by lu", number_text(mine[at]));
    figure("evenly", number_text(1 - sigmas[at]));
  }
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
