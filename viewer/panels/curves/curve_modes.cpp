#include "viewer/panels/curves/curve_modes.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::viewer {

namespace {

constexpr double kLogSpan = 1e9;

/// The range of finite values; low > high where there is none.
struct CurveExtent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(const std::vector<double>& values) {
    for (const double v : values) {
      if (!std::isfinite(v)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
};

/// An axis over these values, and from 0 on where it is not `log`, up to `least_high` at least.
ValueExtent axis_over(CurveExtent values, double least_high, bool log) {
  auto [low, high] = values;
  high = std::max(high, least_high);
  if (low > high) low = high = 1;
  if (!log) {
    low = std::min(low, 0.0);
    const double pad = high > low ? 0.03 * (high - low) : 1;
    return {low < 0 ? low - pad : 0, high + pad};
  }
  low = std::max(low, high / kLogSpan);
  const double pad = high > low ? std::pow(high / low, 0.03) : 2;
  return {low / pad, high * pad};
}

}  // namespace

bool better(double a, double b, CurveMode mode) {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  return mode == CurveMode::loss ? a < b : a > b;
}

std::vector<double> drawn_values(const ScoreCurves::Curve& curve, CurveMode mode, bool log) {
  std::vector<double> values = curve.*kCurveModes[mode].values;
  if (log)
    std::replace_if(
        values.begin(), values.end(), [](double v) { return v <= 0; }, kNone);
  return values;
}

std::vector<double> chance(const ScoreCurves& curves, CurveMode mode) {
  std::vector<double> values;
  for (const Index k : curves.budgets) {
    const double share = static_cast<double>(k) / static_cast<double>(curves.n);
    values.push_back(mode != CurveMode::loss ? share : share < 1 ? curves.total * (1 - share) : kNone);
  }
  return values;
}

double CurveFigure::at(const ScoreCurves::Curve& curve, Index k) const {
  const double value = curve.exact.at(k).*kCurveModes[mode].at;
  if (!less) return value;
  const ScoreCurves::Curve* other = pinned_curve(curve.score);
  return other != nullptr ? difference_of(other->exact.at(k).*kCurveModes[mode].at, value) : kNone;
}

std::vector<double> CurveFigure::drawn(const ScoreCurves::Curve& curve) const {
  if (!less) return drawn_values(curve, mode, log);
  std::vector<double> values;
  for (const Index k : own->budgets) values.push_back(at(curve, k));
  return values;
}

ValueExtent CurveFigure::extent() const {
  CurveExtent extent;
  for (const ScoreCurves::Curve& curve : own->curves)
    if (shows(curve.score)) extent.add(drawn(curve));
  if (less) return axis_over(extent, 0, false);
  if (pinned != nullptr)
    for (const ScoreCurves::Curve& curve : pinned->curves)
      if (shows(curve.score)) extent.add(drawn_values(curve, mode, log));
  const double least_high = mode != CurveMode::loss ? 1.0 : -std::numeric_limits<double>::infinity();
  return axis_over(extent, least_high, log);
}

std::string CurveFigure::axis() const {
  const std::string_view reference = name_of(own->reference);
  const std::string title = mode == CurveMode::recall ? fmt::format("recall@k of {}", reference)
                            : mode == CurveMode::mass ? fmt::format("share of {} kept", reference)
                                                      : title_with_unit(own->reference) + " evicted";
  return less ? title + ", less pinned" : title;
}

std::string table_text(double value, CurveMode mode, bool less) {
  if (mode == CurveMode::loss || std::isnan(value))
    return fmt::format("{}{}", less && value > 0 ? "+" : "", number_text(value));
  return less && value != 0 ? fmt::format("{:+.3f}", value) : fmt::format("{:.3f}", value);
}

std::string budget_text(Index k, Index n) {
  return fmt::format("{} ({:.3g} %)", k, 100.0 * static_cast<double>(k) / static_cast<double>(n));
}

namespace {

/// The score's value and the pinned run's beside it, for a tooltip; empty where no run is pinned.
std::string both_text(const CurveFigure& figure, const ScoreCurves::Curve& curve, Index k) {
  const ScoreCurves::Curve* other = figure.pinned_curve(curve.score);
  if (other == nullptr) return "";
  const double own = curve.exact.at(k).*kCurveModes[figure.mode].at;
  return fmt::format("\n{}: {}, pinned: {}", kCurveModes[figure.mode].title, number_text(own),
                     pinned_text(own, other->exact.at(k).*kCurveModes[figure.mode].at));
}

void draw_row(const CurveFigure& figure, const ScoreCurves::Curve& curve, Index k, MetricSet& hidden,
              std::optional<TokenMetric>& pointed) {
  const Theme& t = theme();
  const TokenMetric reference = figure.own->reference;
  const bool on = figure.shows(curve.score), is_reference = curve.score == reference;
  const std::string name(name_of(curve.score));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = ImGui::GetContentRegionAvail().x, height = ImGui::GetTextLineHeight() + t.px(2);
  if (ImGui::InvisibleButton(name.c_str(), {width, height}) && !is_reference) {
    if (ImGui::GetIO().KeyShift) {
      hidden = MetricSet::all();
      hidden.erase(curve.score);
    } else if (on) {
      hidden.insert(curve.score);
    } else {
      hidden.erase(curve.score);
    }
  }
  ImDrawList* list = ImGui::GetWindowDrawList();
  if (ImGui::IsItemHovered()) {
    list->AddRectFilled(at, {at.x + width, at.y + height}, t.raised, t.px(3));
    pointed = curve.score;
    const std::string_view how = is_reference ? "The reference: the best possible."
                                              : "Click shows or hides it, Shift-click shows it alone.";
    tip(fmt::format("{}\n{}{}\n{}", name, kTokenMetrics[curve.score].meaning, both_text(figure, curve, k),
                    how)
            .c_str());
  }
  const CurveLook look = look_of(curve.score, reference);
  const float middle = std::floor(at.y + height / 2) + 0.5F, key = t.px(16);
  draw_key(list, {at.x + t.px(2), middle}, key, faded(look.color, on ? 1 : 0.45F), look.stroke, 2.0F);

  ImGui::PushFont(mono_font());
  const std::string value = table_text(figure.at(curve, k), figure.mode, figure.less);
  const float value_width = ImGui::CalcTextSize(value.c_str()).x;
  const float value_left = at.x + width - value_width - t.px(3);
  list->AddText({value_left, at.y + t.px(1)}, on ? t.text : t.faint, value.c_str());
  ImGui::PopFont();
  const float left = at.x + key + t.px(8);
  list->AddText({left, at.y + t.px(1)}, on ? t.text : t.faint,
                elided(name, value_left - t.px(6) - left).c_str());
}

}  // namespace

CurveLook look_of(TokenMetric score, TokenMetric reference) {
  const Theme& t = theme();
  if (score == reference) return {t.text, Stroke::solid};
  const auto at = static_cast<std::size_t>(score);
  constexpr Stroke strokes[] = {Stroke::solid, Stroke::dashed, Stroke::dotted};
  return {t.series[at % t.series.size()], strokes[std::min<std::size_t>(at / t.series.size(), 2)]};
}

void draw_curve_rows(const CurveFigure& figure, Index k, MetricSet& hidden,
                     std::optional<TokenMetric>& pointed) {
  std::vector<const ScoreCurves::Curve*> order;
  for (const ScoreCurves::Curve& curve : figure.own->curves) order.push_back(&curve);
  const auto before = [&](const ScoreCurves::Curve* a, const ScoreCurves::Curve* b) {
    if (figure.shows(a->score) != figure.shows(b->score)) return figure.shows(a->score);
    return better(figure.at(*a, k), figure.at(*b, k), figure.mode);
  };
  std::stable_sort(order.begin(), order.end(), before);
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {0, 0});
  bool above = true;
  for (const ScoreCurves::Curve* curve : order) {
    if (std::exchange(above, figure.shows(curve->score)) && !above) ImGui::Dummy({0, theme().px(3)});
    draw_row(figure, *curve, k, hidden, pointed);
  }
  ImGui::PopStyleVar();
}

}  // namespace kvreplay::viewer
