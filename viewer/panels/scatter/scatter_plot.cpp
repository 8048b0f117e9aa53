#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/scatter/scatter_parts.hpp"
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

/// Appearance of one class of points.
struct PointStyle {
  ImU32 color = 0;
  float opacity = 1;  ///< of a point alone; more of them in one place are denser
};

constexpr std::size_t kMostDiscs = 1500, kOutlierLength = 8;
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

PlotAxis axis_of(const ScatterAxis& from, TokenMetric metric, ScatterAxes axes) {
  const double pad = 0.03 * (from.high - from.low);
  const bool ranks = axes == ScatterAxes::rank;
  return {ranks ? fmt::format("rank by {}", name_of(metric)) : title_with_unit(metric),
          from.kind == ScaleKind::log, from.value_at(from.low - pad), from.value_at(from.high + pad), ranks};
}

/// Texts in a plot, none over another.
class PlotTexts {
 public:
  explicit PlotTexts(Plot& plot) : plot_(plot) {}

  /// Draws a text with its upper left corner there, where it is within the plot and meets no other.
  bool draw(ImVec2 at, const std::string& text, ImU32 color, bool mono = false) {
    const Theme& t = theme();
    if (mono) ImGui::PushFont(mono_font());
    const ImVec2 size = ImGui::CalcTextSize(text.c_str());
    at = {std::floor(at.x), std::floor(at.y)};
    const ImVec4 box{at.x - t.px(2), at.y, at.x + size.x + t.px(2), at.y + size.y};
    const bool fits = box.x >= plot_.low_corner().x && box.y >= plot_.low_corner().y &&
                      box.z <= plot_.high_corner().x && box.w <= plot_.high_corner().y &&
                      std::ranges::none_of(taken_, [&](const ImVec4& other) {
                        return box.x < other.z && other.x < box.z && box.y < other.w && other.y < box.w;
                      });
    if (fits) {
      taken_.push_back(box);
      plot_.list()->AddRectFilled({box.x, box.y}, {box.z, box.w}, faded(t.plot, 0.6F), t.px(2));
      plot_.list()->AddText(at, color, text.c_str());
    }
    if (mono) ImGui::PopFont();
    return fits;
  }
  /// In a corner of the plot, as near to it as others leave room.
  void corner(bool right, bool below, const std::string& text, ImU32 color) {
    const float line = ImGui::GetTextLineHeight(), inset = theme().px(4);
    const float x = right ? plot_.high_corner().x - inset - ImGui::CalcTextSize(text.c_str()).x
                          : plot_.low_corner().x + inset;
    for (int lines = 0; lines < 3; ++lines) {
      const float far = theme().px(2) + static_cast<float>(lines) * line;
      if (draw({x, below ? plot_.high_corner().y - far - line : plot_.low_corner().y + far}, text, color))
        return;
    }
  }

 private:
  Plot& plot_;
  std::vector<ImVec4> taken_;
};

/// The quadrants that the budget makes: what only one of the two keeps is tinted.
void draw_cut(Plot& plot, const ScatterPixels& pixels, const ScatterCut& cut) {
  const Theme& t = theme();
  const ImVec2 low = plot.low_corner(), high = plot.high_corner();
  const ImVec2 at = pixels.at({cut.x.value_or(pixels.low().x), cut.y.value_or(pixels.low().y)});
  const float x = std::clamp(std::floor(at.x) + 0.5F, low.x, high.x),
              y = std::clamp(std::floor(at.y) + 0.5F, low.y, high.y);
  if (cut.x && cut.y) {
    plot.list()->AddRectFilled(low, {x, y}, faded(t.error, 0.09F));
    plot.list()->AddRectFilled({x, y}, high, faded(t.warning, 0.09F));
  }
  if (cut.x) plot.list()->AddLine({x, low.y}, {x, high.y}, t.accent, t.px(1.2F));
  if (cut.y) plot.list()->AddLine({low.x, y}, {high.x, y}, t.accent, t.px(1.2F));
}

/// Draws the number of tokens of each quadrant in its outer corner, if that corner is in view.
void draw_quadrants(const Plot& plot, const ScatterPixels& pixels, const ScatterCut& cut, PlotTexts& texts) {
  if (!cut.x || !cut.y) return;
  const Theme& t = theme();
  const ImVec2 at = pixels.at({*cut.x, *cut.y}), low = plot.low_corner(), high = plot.high_corner();
  const auto quadrant = [&](bool right, bool below, const std::string& text, ImU32 color) {
    const float width = right ? high.x - at.x : at.x - low.x, height = below ? high.y - at.y : at.y - low.y;
    if (width > ImGui::CalcTextSize(text.c_str()).x + t.px(8) && height > ImGui::GetTextLineHeight())
      texts.corner(right, below, text, color);
  };
  quadrant(false, false, fmt::format("{} lost", cut.lost), t.text);
  quadrant(true, true, fmt::format("{} wasted", cut.wasted()), t.text);
  quadrant(true, false, fmt::format("{} kept by both", cut.both()), t.dim);
  quadrant(false, true, fmt::format("{} by neither", cut.neither()), t.dim);
}

/// The words of the tokens whose ranks disagree most, as many as have room.
void draw_outliers(const Plot& plot, const ScatterPixels& pixels, const ScatterContent& content,
                   const std::optional<TokenLabels>& labels, PlotTexts& texts) {
  const Theme& t = theme();
  const float gap = t.px(6), half = ImGui::GetTextLineHeight() / 2;
  for (const Index token : content.facts.outliers) {
    const auto point = point_of(content.scatter(), token);
    if (!point) continue;
    const ImVec2 at = pixels.at(point->at);
    if (at.x < plot.low_corner().x || at.x > plot.high_corner().x || at.y < plot.low_corner().y ||
        at.y > plot.high_corner().y)
      continue;
    const std::string known = token_text(labels, token, kOutlierLength);
    const std::string text = known.empty() ? std::to_string(token) : known;
    const float width = mono_width(text);
    const ImVec2 places[] = {{at.x + gap, at.y - half},
                             {at.x - gap - width, at.y - half},
                             {at.x - width / 2, at.y - gap - 2 * half},
                             {at.x - width / 2, at.y + gap}};
    if (std::ranges::any_of(places, [&](ImVec2 place) { return texts.draw(place, text, t.text, true); }))
      plot.list()->AddCircle(at, t.px(3.6F), t.text, 0, t.px(1));
  }
}

/// y = x, where both axes count the same.
void draw_diagonal(const Plot& plot, const ScatterPixels& pixels, const ScatterContent& content) {
  const Theme& t = theme();
  const bool ranks = content.facts.axes == ScatterAxes::rank;
  const MetricUnit unit = kTokenMetrics[content.facts.score].unit;
  const bool one_unit = unit == kTokenMetrics[content.facts.reference].unit && unit != MetricUnit::other &&
                        content.scatter().x.kind == content.scatter().y.kind;
  if (!ranks && !one_unit) return;
  const auto [x_low, x_high] = std::minmax(pixels.low().x, pixels.high().x);
  const auto [y_low, y_high] = std::minmax(pixels.low().y, pixels.high().y);
  const double from = std::max(x_low, y_low), to = std::min(x_high, y_high);
  if (from >= to) return;
  plot.list()->AddLine(pixels.at({from, from}), pixels.at({to, to}), t.faint, t.px(1));
}

void draw_edges(const Scatter& s, PlotTexts& texts) {
  const Theme& t = theme();
  if (s.x.kind == ScaleKind::log && s.x.at_edge > 0)
    texts.corner(false, false, fmt::format("{} at 0", s.x.at_edge), t.dim);
  if (s.y.kind == ScaleKind::log && s.y.at_edge > 0)
    texts.corner(true, true, fmt::format("{} at 0", s.y.at_edge), t.dim);
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
  const Key axes(content.runs, facts.score, facts.reference, facts.axes);
  if (std::exchange(axes_, axes) != axes) view_ = {};
  const ImVec2 room = ImGui::GetContentRegionAvail();
  PlotAxis x = axis_of(s.x, facts.score, facts.axes), y = axis_of(s.y, facts.reference, facts.axes);
  // Where it is low, titles stand within.
  const bool low = room.y < t.px(ScatterPlot::kLow);
  const std::string x_title = low ? std::exchange(x.title, {}) : "",
                    y_title = low ? std::exchange(y.title, {}) : "";
  Plot plot("plot", room, x, y, view_, true);
  const ScatterPixels pixels(s, plot);
  draw_cut(plot, pixels, content.cut);
  draw_diagonal(plot, pixels, content);
  if (content.pair != nullptr) {
    const PointStyle faint[] = {{pinned_color(), 0.35F}};
    draw_points(plot, content.pair->pinned, {}, faint);
  }
  const PointStyle styles[] = {{t.dim, 0.55F}, {t.series[2], 0.8F}, {t.accent, 0.95F}};
  draw_points(plot, s, content.classes, styles);
  PlotTexts texts(plot);
  if (low) {
    texts.corner(false, false, y_title, t.dim);
    texts.corner(true, true, x_title, t.dim);
  }
  draw_edges(s, texts);
  draw_quadrants(plot, pixels, content.cut, texts);
  draw_outliers(plot, pixels, content, state.run()->labels(), texts);

  std::optional<ScatterPoint> under;
  if (plot.hovered() && !lasso_.drawing())
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
  const Lasso::Taken taken = lasso_.take(plot);
  if (taken.clicked && under) state.select_cell(state.selection().row, under->token);
  if (taken.polygon.empty()) return;
  const ScatterPixels pixels(scatter, plot);
  std::vector<AxisPoint> polygon;
  for (const ImVec2 corner : taken.polygon) polygon.push_back(pixels.of(corner));
  std::vector<Index> tokens = tokens_within(scatter, polygon);
  const std::vector<Index>& before = state.selection().tokens;
  std::vector<Index> result;
  if (ImGui::GetIO().KeyShift)
    std::set_union(before.begin(), before.end(), tokens.begin(), tokens.end(), std::back_inserter(result));
  else if (ImGui::GetIO().KeyCtrl)
    std::set_difference(before.begin(), before.end(), tokens.begin(), tokens.end(),
                        std::back_inserter(result));
  else
    result = std::move(tokens);
  state.select_tokens(std::move(result));
}

}  // namespace kvreplay::viewer
