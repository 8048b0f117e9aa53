#include "viewer/panels/curves/curve_rows.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

void draw_row(const ScoreCurves& curves, const ScoreCurves::Curve& curve, CurveMode mode, Index k,
              MetricSet& hidden, std::optional<TokenMetric>& pointed) {
  const Theme& t = theme();
  const bool on = is_shown(curve.score, curves, hidden), is_reference = curve.score == curves.reference;
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
    tip(fmt::format("{}\n{}\n{}", name, kTokenMetrics[curve.score].meaning, how).c_str());
  }
  const CurveLook look = look_of(curve.score, curves.reference);
  const float middle = std::floor(at.y + height / 2) + 0.5F, key = t.px(16);
  draw_key(list, {at.x + t.px(2), middle}, key, faded(look.color, on ? 1 : 0.45F), look.stroke, 2.0F);

  ImGui::PushFont(mono_font());
  const std::string value = table_text(value_of(curve.exact.at(k), mode), mode);
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

void draw_curve_rows(const ScoreCurves& curves, CurveMode mode, Index k, MetricSet& hidden,
                     std::optional<TokenMetric>& pointed) {
  std::vector<const ScoreCurves::Curve*> order;
  for (const ScoreCurves::Curve& curve : curves.curves) order.push_back(&curve);
  const auto before = [&](const ScoreCurves::Curve* a, const ScoreCurves::Curve* b) {
    if (is_shown(a->score, curves, hidden) != is_shown(b->score, curves, hidden))
      return is_shown(a->score, curves, hidden);
    return better(value_of(a->exact.at(k), mode), value_of(b->exact.at(k), mode), mode);
  };
  std::stable_sort(order.begin(), order.end(), before);
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {0, 0});
  bool above = true;
  for (const ScoreCurves::Curve* curve : order) {
    if (std::exchange(above, is_shown(curve->score, curves, hidden)) && !above)
      ImGui::Dummy({0, theme().px(3)});
    draw_row(curves, *curve, mode, k, hidden, pointed);
  }
  ImGui::PopStyleVar();
}

}  // namespace kvreplay::viewer
