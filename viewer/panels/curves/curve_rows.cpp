#include "viewer/panels/curves/curve_rows.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The score's value and the pinned run's beside it, for a tooltip; empty where no run is pinned.
std::string both_text(const CurveFigure& figure, const ScoreCurves::Curve& curve, Index k) {
  const ScoreCurves::Curve* other = figure.pinned_curve(curve.score);
  if (other == nullptr) return "";
  const double own = value_of(curve.exact.at(k), figure.mode);
  return fmt::format("\n{}: {}, pinned: {}", title_of(figure.mode), number_text(own),
                     pinned_text(own, value_of(other->exact.at(k), figure.mode)));
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
