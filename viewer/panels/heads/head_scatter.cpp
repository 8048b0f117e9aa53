#include "viewer/panels/heads/head_parts.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Value of each head; kNone for stale ones.
std::vector<double> values_of(const FigureMap& map) {
  std::vector<double> values(map.values.data(), map.values.data() + map.values.size());
  for (std::size_t h = 0; h < values.size(); ++h)
    if (map.is_stale(static_cast<Index>(h))) values[h] = kNone;
  return values;
}

/// A logarithm where the figure is drawn on one and every head has a place on it.
ScaleKind kind_of(const FigureMap& map) {
  const bool log = scale_kind(map.figure.facts.scale) == ScaleKind::log;
  return log && !(map.values.array() <= 0).any() ? ScaleKind::log : ScaleKind::linear;
}

PlotAxis axis_of(const ScatterAxis& from, const FigureMap& map) {
  const double pad = 0.05 * (from.high - from.low);
  return {map.figure.title, from.kind == ScaleKind::log, from.value_at(from.low - pad),
          from.value_at(from.high + pad)};
}

void draw_tip(const Run& run, const FigureMap& across, const FigureMap& up, Index head) {
  ImGui::BeginTooltip();
  const Index row = head / up.values.cols();
  ImGui::TextUnformatted(fmt::format("layer {}, KV head {}",
                                     run.layer_number(up.layers[static_cast<std::size_t>(row)]),
                                     head % up.values.cols())
                             .c_str());
  for (const FigureMap* map : {&up, &across})
    figure(map->figure.path.back().c_str(), number_text(map->values.data()[head]));
  ImGui::EndTooltip();
}

}  // namespace

bool HeadScatter::choose_none() { return !std::exchange(chosen_, {}).empty(); }

void HeadScatter::draw(AppState& state, ImVec2 size, const std::shared_ptr<const FigureMap>& across,
                       const std::shared_ptr<const FigureMap>& up, const FigureMap& shown,
                       const HeatmapView& colors) {
  const Theme& t = theme();
  if (across_ != across || up_ != up) {
    const bool other = !up_ || up_->figure.name != up->figure.name || up_->layers != up->layers || !across_ ||
                       across_->figure.name != across->figure.name;
    if (other) {
      view_ = {};
      chosen_.clear();
    }
    across_ = across;
    up_ = up;
    points_ = scatter(values_of(*across), values_of(*up), {kind_of(*across), kind_of(*up)});
  }
  const FigureMap& map = *up_;
  if (points_.points.empty()) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImGui::GetWindowDrawList()->AddRect(at, {at.x + size.x, at.y + size.y}, t.grid);
    ImGui::GetWindowDrawList()->AddText(
        {at.x + t.px(8), at.y + t.px(6)}, t.dim,
        elided("A point a head, once both figures are known", size.x - t.px(16)).c_str());
    return ImGui::Dummy(size);
  }
  Plot plot("heads", size, axis_of(points_.x, *across_), axis_of(points_.y, map), view_, true);
  const auto pixel_of = [&](Index head) {
    return plot.at(across_->values.data()[head], map.values.data()[head]);
  };
  const float radius = t.px(points_.points.size() > 400 ? 2.5F : 3.5F);
  for (const ScatterPoint& point : points_.points) {
    const Index head = point.token;
    const bool counts = chosen_.empty() || std::binary_search(chosen_.begin(), chosen_.end(), head);
    const float place = colors.scale().place(static_cast<float>(shown.values.data()[head]));
    const ImU32 color = to_imgui(color_of(colors.colors(), std::clamp(place, 0.0F, 1.0F)));
    const ImVec2 at = pixel_of(head);
    plot.list()->AddCircleFilled(at, radius, faded(color, counts ? 1 : 0.25F));
    plot.list()->AddCircle(at, radius, faded(t.text, counts ? 0.45F : 0.15F));
  }
  const auto ring = [&](Index layer, Index kv_head, ImU32 color) {
    const auto row = std::find(map.layers.begin(), map.layers.end(), layer);
    if (row == map.layers.end() || kv_head >= map.values.cols()) return;
    const Index head = (row - map.layers.begin()) * map.values.cols() + kv_head;
    if (std::isfinite(map.values.data()[head]) && std::isfinite(across_->values.data()[head]))
      plot.list()->AddCircle(pixel_of(head), radius + t.px(3), color, 0, t.px(1.8F));
  };
  if (state.hover.layer && state.hover.kv_head)
    ring(*state.hover.layer, *state.hover.kv_head, faded(t.text, 0.7F));
  ring(state.selection().layer, state.selection().kv_head, t.accent);
  take_hand(state, map, plot);
}

void HeadScatter::take_hand(AppState& state, const FigureMap& map, const Plot& plot) {
  std::optional<Index> under;
  if (plot.hovered() && !lasso_.drawing()) {
    const ImVec2 mouse = ImGui::GetMousePos();
    const AxisPoint place{points_.x.coordinate(plot.x_of(mouse.x)), points_.y.coordinate(plot.y_of(mouse.y))};
    const AxisPoint beside{points_.x.coordinate(plot.x_of(mouse.x + 1)),
                           points_.y.coordinate(plot.y_of(mouse.y - 1))};
    const auto found =
        nearest(points_, place, {beside.x - place.x, beside.y - place.y}, static_cast<double>(theme().px(9)));
    if (found) under = found->token;
  }
  const Lasso::Taken taken = lasso_.take(plot);
  const auto layer_of = [&](Index head) {
    return map.layers[static_cast<std::size_t>(head / map.values.cols())];
  };
  if (under) {
    state.next_hover.layer = layer_of(*under);
    state.next_hover.kv_head = *under % map.values.cols();
    draw_tip(*state.run(), *across_, map, *under);
  }
  if (taken.clicked) {
    if (under)
      state.select_head(layer_of(*under), *under % map.values.cols());
    else
      choose_none();
  }
  if (taken.polygon.empty()) return;
  std::vector<AxisPoint> polygon;
  for (const ImVec2 corner : taken.polygon)
    polygon.push_back({points_.x.coordinate(plot.x_of(corner.x)), points_.y.coordinate(plot.y_of(corner.y))});
  chosen_ = tokens_within(points_, polygon);
}

}  // namespace kvreplay::viewer
