#include "viewer/panels/scatter/scatter_plot.hpp"

#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Axis coordinates of a scatter plot as pixels of the Plot that shows it, and back.
class ScatterPixels {
 public:
  ScatterPixels(const Scatter& scatter, const Plot& plot);

  ImVec2 at(AxisPoint point) const;
  AxisPoint of(ImVec2 pixel) const;
  /// Coordinates a pixel.
  AxisPoint unit() const { return unit_; }
  AxisPoint low() const { return low_; }    ///< of the lower left corner
  AxisPoint high() const { return high_; }  ///< of the upper right corner

 private:
  ImVec2 corner_;  ///< the lower left one
  AxisPoint low_, high_, unit_;
};

/// How one class of points looks.
struct PointStyle {
  ImU32 color = 0;
  float opacity = 1;  ///< of a point alone; more of them in one place are denser
};

constexpr std::size_t kMostDiscs = 1500;
/// Quads that one reservation may hold: ImGui's indices have 16 bits, four vertices a quad.
constexpr std::size_t kQuadsAtOnce = 8192;

struct Spot {
  ImVec2 at;
  std::uint8_t style = 0;
};

std::uint8_t style_of(std::span<const std::uint8_t> classes, Index token, std::size_t styles) {
  const auto at = static_cast<std::size_t>(token);
  return at < classes.size() && classes[at] < styles ? classes[at] : std::uint8_t{0};
}

void draw_discs(const Plot& plot, std::span<const Spot> spots, std::span<const PointStyle> styles) {
  const float base = spots.size() < 200 ? 2.8F : 2.2F;
  for (std::size_t s = 0; s < styles.size(); ++s) {
    const float radius = theme().px(s + 1 < styles.size() ? base : base + 0.6F);
    for (const Spot& spot : spots)
      if (spot.style == s)
        plot.list()->AddCircleFilled(spot.at, radius, faded(styles[s].color, styles[s].opacity));
  }
}

/// Counts of points in square cells over a plot's area.
class Cells {
 public:
  Cells(const Plot& plot, float size, std::size_t styles)
      : styles_(styles),
        low_(plot.low_corner()),
        size_(size),
        columns_(static_cast<std::size_t>((plot.high_corner().x - low_.x) / size) + 1),
        rows_(static_cast<std::size_t>((plot.high_corner().y - low_.y) / size) + 1),
        counts_(columns_ * rows_ * styles, 0) {}

  void add(ImVec2 at, std::uint8_t style) {
    const auto column = std::min(static_cast<std::size_t>((at.x - low_.x) / size_), columns_ - 1);
    const auto row = std::min(static_cast<std::size_t>((at.y - low_.y) / size_), rows_ - 1);
    ++counts_[(row * columns_ + column) * styles_ + style];
  }

  void draw(ImDrawList* list, std::span<const PointStyle> styles) const {
    std::vector<Filled> filled;
    std::uint32_t most = 1;
    for (std::size_t cell = 0; cell < columns_ * rows_; ++cell) {
      const Filled found = look(cell);
      if (found.count > 0) filled.push_back(found);
      most = std::max(most, found.count);
    }
    for (std::size_t from = 0; from < filled.size(); from += kQuadsAtOnce) {
      const std::size_t quads = std::min(kQuadsAtOnce, filled.size() - from);
      list->PrimReserve(static_cast<int>(6 * quads), static_cast<int>(4 * quads));
      for (std::size_t i = from; i < from + quads; ++i) {
        const std::size_t row = filled[i].cell / columns_, column = filled[i].cell % columns_;
        const ImVec2 corner{low_.x + size_ * static_cast<float>(column),
                            low_.y + size_ * static_cast<float>(row)};
        const PointStyle& style = styles[filled[i].style];
        list->PrimRect(corner, {corner.x + size_, corner.y + size_},
                       faded(style.color, shade(filled[i].count, most, style.opacity)));
      }
    }
  }

 private:
  struct Filled {
    std::size_t cell = 0, style = 0;
    std::uint32_t count = 0;
  };
  /// The last style shows wherever it is, of the others the most frequent.
  Filled look(std::size_t cell) const {
    Filled found{cell, 0, 0};
    std::uint32_t frequent = 0;
    for (std::size_t s = 0; s < styles_; ++s) {
      const std::uint32_t count = counts_[cell * styles_ + s];
      found.count += count;
      if (count == 0 || (count <= frequent && s + 1 < styles_)) continue;
      frequent = count;
      found.style = s;
    }
    return found;
  }
  static float shade(std::uint32_t count, std::uint32_t most, float alone) {
    if (most < 2) return alone;
    return alone + (1 - alone) * std::log(static_cast<float>(count)) / std::log(static_cast<float>(most));
  }

  std::size_t styles_;
  ImVec2 low_;
  float size_;
  std::size_t columns_, rows_;
  std::vector<std::uint32_t> counts_;  // [rows, columns, styles]
};

ScatterPixels::ScatterPixels(const Scatter& scatter, const Plot& plot)
    : corner_{plot.low_corner().x, plot.high_corner().y} {
  const ImVec2 a = plot.low_corner(), b = plot.high_corner();
  low_ = {scatter.x.coordinate(plot.x_of(a.x)), scatter.y.coordinate(plot.y_of(b.y))};
  high_ = {scatter.x.coordinate(plot.x_of(b.x)), scatter.y.coordinate(plot.y_of(a.y))};
  unit_ = {(high_.x - low_.x) / (b.x - a.x), (high_.y - low_.y) / (b.y - a.y)};
}

ImVec2 ScatterPixels::at(AxisPoint point) const {
  return {static_cast<float>(corner_.x + (point.x - low_.x) / unit_.x),
          static_cast<float>(corner_.y - (point.y - low_.y) / unit_.y)};
}

AxisPoint ScatterPixels::of(ImVec2 pixel) const {
  return {low_.x + unit_.x * (pixel.x - corner_.x), low_.y + unit_.y * (corner_.y - pixel.y)};
}

/// Draws the points in view. `classes` says by token which of `styles` a point has (empty: all the first);
/// later ones lie above earlier ones. Few points are discs. Many are counted in square cells two points wide,
/// each drawn once, in shades by count, in the last style where that has a point there, else in the most
/// frequent: a frame costs O(points) to count and O(cells) to draw.
void draw_points(const Plot& plot, const Scatter& scatter, std::span<const std::uint8_t> classes,
                 std::span<const PointStyle> styles) {
  const ScatterPixels pixels(scatter, plot);
  const ImVec2 low = plot.low_corner(), high = plot.high_corner();
  const auto inside = [&](ImVec2 at) {
    return at.x >= low.x && at.x <= high.x && at.y >= low.y && at.y <= high.y;
  };
  std::vector<Spot> spots;
  for (const ScatterPoint& point : scatter.points) {
    const ImVec2 at = pixels.at(point.at);
    if (inside(at)) spots.push_back({at, style_of(classes, point.token, styles.size())});
  }
  if (spots.size() <= kMostDiscs) return draw_discs(plot, spots, styles);
  Cells cells(plot, std::max(1.0F, std::round(theme().px(2))), styles.size());
  for (const Spot& spot : spots) cells.add(spot.at, spot.style);
  cells.draw(plot.list(), styles);
}

/// More lines than these from one run to the other do not tell tokens apart.
constexpr std::size_t kMostMoves = 400;

std::optional<ScatterPoint> point_of(const Scatter& scatter, std::optional<Index> token) {
  if (!token) return std::nullopt;
  const auto found =
      std::lower_bound(scatter.points.begin(), scatter.points.end(), *token,
                       [](const ScatterPoint& point, Index wanted) { return point.token < wanted; });
  if (found == scatter.points.end() || found->token != *token) return std::nullopt;
  return *found;
}

PlotAxis axis_of(const ScatterAxis& from, TokenMetric metric) {
  const double pad = 0.03 * (from.high - from.low);
  return {title_with_unit(metric), from.kind == ScaleKind::log, from.value_at(from.low - pad),
          from.value_at(from.high + pad)};
}

/// Where both metrics have one unit.
void draw_diagonal(Plot& plot, const ScatterPixels& pixels, const ScatterContent& content) {
  const Theme& t = theme();
  const MetricUnit unit = kTokenMetrics[content.facts.score].unit;
  if (unit != kTokenMetrics[content.facts.reference].unit || unit == MetricUnit::other ||
      content.scatter().x.kind != content.scatter().y.kind)
    return;
  const double from = std::max(pixels.low().x, pixels.low().y),
               to = std::min(pixels.high().x, pixels.high().y);
  if (from >= to) return;
  const ImVec2 end = pixels.at({to, to});
  plot.list()->AddLine(pixels.at({from, from}), end, t.faint, t.px(1));
  plot.label({end.x - t.px(40), end.y + t.px(16)}, "y = x", t.dim);
}

void draw_edges(Plot& plot, const Scatter& s) {
  const Theme& t = theme();
  if (s.x.kind == ScaleKind::log && s.x.at_edge > 0)
    plot.label({plot.low_corner().x + t.px(5), plot.low_corner().y + t.px(3)},
               fmt::format("{} at 0", s.x.at_edge).c_str(), t.dim);
  if (s.y.kind == ScaleKind::log && s.y.at_edge > 0)
    plot.label({plot.high_corner().x, plot.high_corner().y - ImGui::GetTextLineHeight() - t.px(3)},
               fmt::format("{} at 0", s.y.at_edge).c_str(), t.dim);
}

/// From where the pinned run has the token to where this one has it.
void draw_move(const Plot& plot, const ScatterPixels& pixels, const ScatterPair& pair,
               std::optional<Index> token, ImU32 color) {
  const auto from = point_of(pair.pinned, token), to = point_of(pair.own, token);
  if (!from || !to) return;
  const Theme& t = theme();
  const ImVec2 begin = pixels.at(from->at);
  plot.list()->AddLine(begin, pixels.at(to->at), color, t.px(1.2F));
  plot.list()->AddCircle(begin, t.px(3.2F), color, 0, t.px(1.2F));
}

void draw_tip(AppState& state, const ScatterContent& content, Index token) {
  const ScatterFacts& facts = content.facts;
  state.next_hover.token = token;
  const std::string text = token_text(state.run()->labels(), token, 24);
  ImGui::BeginTooltip();
  ImGui::Text("token %d", static_cast<int>(token));
  if (!text.empty()) {
    ImGui::SameLine();
    mono_text(text);
  }
  const auto at = static_cast<std::size_t>(token);
  const auto line = [&](TokenMetric metric, const std::vector<std::int32_t> ScatterFacts::*place) {
    const double own = (*facts.head->tokens)[metric](0, token);
    figure(std::string(name_of(metric)).c_str(), number_text(own));
    ImGui::SameLine();
    dim_text(fmt::format("rank {} of {}", (facts.*place)[at] + 1, facts.head->l));
    if (content.pinned == nullptr) return;
    figure("pinned", pinned_text(own, (*content.pinned->head->tokens)[metric](0, token)));
    ImGui::SameLine();
    dim_text(fmt::format("rank {}", (content.pinned->*place)[at] + 1));
  };
  line(facts.score, &ScatterFacts::score_place);
  line(facts.reference, &ScatterFacts::reference_place);
  ImGui::EndTooltip();
}

}  // namespace

ImU32 ScatterPlot::pinned_color() { return theme().series[4]; }

void ScatterPlot::draw(AppState& state, const ScatterContent& content) {
  const Theme& t = theme();
  const Scatter& s = content.scatter();
  const ScatterFacts& facts = content.facts;
  const Key axes(content.runs, facts.score, facts.reference, s.x.kind == ScaleKind::log);
  if (std::exchange(axes_, axes) != axes) view_ = {};
  Plot plot("plot", ImGui::GetContentRegionAvail(), axis_of(s.x, facts.score), axis_of(s.y, facts.reference),
            view_, true);
  const ScatterPixels pixels(s, plot);
  draw_diagonal(plot, pixels, content);
  if (content.pair != nullptr) {
    const PointStyle faint[] = {{pinned_color(), 0.35F * content.fade}};
    draw_points(plot, content.pair->pinned, {}, faint);
  }
  const PointStyle styles[] = {
      {t.dim, 0.55F * content.fade}, {t.series[2], 0.8F * content.fade}, {t.accent, 0.95F * content.fade}};
  draw_points(plot, s, content.classes, styles);
  draw_edges(plot, s);

  std::optional<ScatterPoint> under;
  if (plot.hovered() && lasso_.size() < 2)
    under = nearest(s, pixels.of(ImGui::GetMousePos()), pixels.unit(), t.px(8));
  const Selection& selected = state.selection();
  const std::optional<Index> hovered = under ? std::optional(under->token) : state.hover.token;
  if (content.pair != nullptr) {
    if (selected.tokens.empty())
      for (const Index token : content.pair->moved)
        draw_move(plot, pixels, *content.pair, token, faded(pinned_color(), 0.7F));
    if (selected.tokens.size() <= kMostMoves)
      for (const Index token : selected.tokens)
        draw_move(plot, pixels, *content.pair, token, faded(t.accent, 0.7F));
    draw_move(plot, pixels, *content.pair, selected.token, t.accent);
    draw_move(plot, pixels, *content.pair, hovered, t.text);
  }
  const auto ring = [&](std::optional<Index> token, ImU32 color) {
    const auto point = point_of(s, token);
    if (!point) return;
    const ImVec2 at = pixels.at(point->at);
    plot.list()->AddCircleFilled(at, t.px(3), color);
    plot.list()->AddCircle(at, t.px(6), color, 0, t.px(1.6F));
  };
  ring(selected.token, t.accent);
  ring(hovered, t.text);
  take_lasso(state, s, plot, under);
  if (under) draw_tip(state, content, under->token);
}

void ScatterPlot::take_lasso(AppState& state, const Scatter& scatter, const Plot& plot,
                             std::optional<ScatterPoint> under) {
  const Theme& t = theme();
  const ScatterPixels pixels(scatter, plot);
  const ImGuiIO& io = ImGui::GetIO();
  if (plot.hovered() && ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    pressed_ = true;
    lasso_ = {pixels.of(io.MousePos)};
  }
  if (pressed_ && ImGui::IsMouseDown(ImGuiMouseButton_Left)) {
    const ImVec2 last = pixels.at(lasso_.back());
    if (std::hypot(io.MousePos.x - last.x, io.MousePos.y - last.y) >= t.px(3))
      lasso_.push_back(pixels.of(io.MousePos));
  } else if (std::exchange(pressed_, false)) {
    if (lasso_.size() < 3) {
      if (under) state.select_cell(state.selection().row, under->token);
    } else {
      std::vector<Index> tokens = tokens_within(scatter, lasso_);
      const std::vector<Index>& before = state.selection().tokens;
      std::vector<Index> result;
      if (io.KeyShift)
        std::set_union(before.begin(), before.end(), tokens.begin(), tokens.end(),
                       std::back_inserter(result));
      else if (io.KeyCtrl)
        std::set_difference(before.begin(), before.end(), tokens.begin(), tokens.end(),
                            std::back_inserter(result));
      else
        result = std::move(tokens);
      state.select_tokens(std::move(result));
    }
    lasso_.clear();
  }
  if (lasso_.size() > 1) {
    std::vector<ImVec2> line;
    for (const AxisPoint& corner : lasso_) line.push_back(pixels.at(corner));
    plot.list()->AddPolyline(line.data(), static_cast<int>(line.size()), t.accent, ImDrawFlags_None,
                             t.px(1.5F));
    plot.list()->AddLine(line.back(), line.front(), faded(t.accent, 0.4F), t.px(1));
  }
}

}  // namespace kvreplay::viewer
