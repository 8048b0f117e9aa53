#include "viewer/questions/scatter.hpp"

#include "analysis/results/agreement.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The edge for what a log axis cannot show lies this share of the axis below the least value.
constexpr double kEdgeShare = 0.05;

ScaleKind fitting(std::span<const double> values) {
  bool positive = false;
  for (const double v : values) {
    if (v < 0 && std::isfinite(v)) return ScaleKind::linear;
    positive = positive || (v > 0 && std::isfinite(v));
  }
  return positive ? ScaleKind::log : ScaleKind::linear;
}

/// Values that a log axis has no place for, of those of which both sides are finite.
std::size_t at_edge_of(std::span<const double> values, std::span<const double> other, ScaleKind kind) {
  std::size_t found = 0;
  for (std::size_t p = 0; p < values.size(); ++p)
    if (std::isfinite(values[p]) && std::isfinite(other[p]) && values[p] <= 0) ++found;
  return kind == ScaleKind::log ? found : 0;
}

/// An axis over the values of which both sides are finite.
ScatterAxis axis_over(std::span<const double> values, std::span<const double> other,
                      std::optional<ScaleKind> kind) {
  ScatterAxis axis;
  axis.kind = kind.value_or(fitting(values)) == ScaleKind::log ? ScaleKind::log : ScaleKind::linear;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (std::size_t p = 0; p < values.size(); ++p) {
    const double v = values[p];
    if (!std::isfinite(v) || !std::isfinite(other[p])) continue;
    if (axis.kind == ScaleKind::log && v <= 0) continue;
    const double at = axis.kind == ScaleKind::log ? std::log10(v) : v;
    low = std::min(low, at);
    high = std::max(high, at);
  }
  axis.at_edge = at_edge_of(values, other, axis.kind);
  if (low > high) low = high = 0;
  if (low == high) {
    const double around = axis.kind == ScaleKind::log ? 0.5 : low == 0 ? 0.5 : std::abs(low) / 2;
    low -= around;
    high += around;
  }
  if (axis.at_edge > 0) low -= kEdgeShare * (high - low);
  axis.low = low;
  axis.high = high;
  return axis;
}

/// The tokens whose points in the one and in the other are farthest apart; both have the same axes.
std::vector<Index> farthest(const Scatter& own, const Scatter& pinned, std::size_t most) {
  const double x = own.x.high - own.x.low, y = own.y.high - own.y.low;
  std::vector<std::pair<double, Index>> moves;  // how near, token
  auto other = pinned.points.begin();
  for (const ScatterPoint& point : own.points) {
    while (other != pinned.points.end() && other->token < point.token) ++other;
    if (other == pinned.points.end() || other->token != point.token) continue;
    const double far = std::hypot((point.at.x - other->at.x) / x, (point.at.y - other->at.y) / y);
    if (far > 0) moves.emplace_back(-far, point.token);
  }
  const auto end = moves.begin() + static_cast<std::ptrdiff_t>(std::min(most, moves.size()));
  std::partial_sort(moves.begin(), end, moves.end());
  std::vector<Index> tokens;
  for (auto move = moves.begin(); move != end; ++move) tokens.push_back(move->second);
  return tokens;
}

/// The cell of `cells` equal ones over the axis; the high edge belongs to the last.
Index cell_of(double coordinate, const ScatterAxis& axis, Index cells) {
  const double share = (coordinate / 2 - axis.low / 2) / (axis.high / 2 - axis.low / 2);
  return std::clamp<Index>(static_cast<Index>(std::floor(share * static_cast<double>(cells))), 0, cells - 1);
}

bool within(const AxisPoint& a, const AxisPoint& b, const AxisPoint& at) {
  return (a.y > at.y) != (b.y > at.y) && at.x < a.x + (at.y - a.y) / (b.y - a.y) * (b.x - a.x);
}

}  // namespace

double ScatterAxis::coordinate(double value) const {
  if (!std::isfinite(value)) return kNone;
  if (kind != ScaleKind::log) return value;
  return value > 0 ? std::log10(value) : low;
}

double ScatterAxis::value_at(double coordinate) const {
  return kind == ScaleKind::log ? std::pow(10.0, coordinate) : coordinate;
}

Scatter scatter(std::span<const double> score, std::span<const double> reference,
                const ScatterOptions& options) {
  assert(score.size() == reference.size());
  Scatter result;
  result.x = axis_over(score, reference, options.x);
  result.y = axis_over(reference, score, options.y);
  for (std::size_t p = 0; p < score.size(); ++p) {
    const AxisPoint at{result.x.coordinate(score[p]), result.y.coordinate(reference[p])};
    if (std::isnan(at.x) || std::isnan(at.y))
      ++result.left_out;
    else
      result.points.push_back({at, static_cast<Index>(p)});
  }
  return result;
}

ScatterPair scatter_pair(std::span<const double> own_score, std::span<const double> own_reference,
                         std::span<const double> pinned_score, std::span<const double> pinned_reference,
                         const ScatterOptions& options) {
  const auto joined = [](std::span<const double> a, std::span<const double> b) {
    std::vector<double> both(a.begin(), a.end());
    both.insert(both.end(), b.begin(), b.end());
    return both;
  };
  const auto n = static_cast<Index>(own_score.size());
  const Scatter both =
      scatter(joined(own_score, pinned_score), joined(own_reference, pinned_reference), options);
  const auto part = [&](bool own, std::span<const double> score, std::span<const double> reference) {
    Scatter some{both.x, both.y, {}, 0};
    for (ScatterPoint point : both.points) {
      if ((point.token < n) != own) continue;
      point.token %= n;
      some.points.push_back(point);
    }
    some.left_out = score.size() - some.points.size();
    some.x.at_edge = at_edge_of(score, reference, both.x.kind);
    some.y.at_edge = at_edge_of(reference, score, both.y.kind);
    return some;
  };
  ScatterPair pair{part(true, own_score, own_reference), part(false, pinned_score, pinned_reference), {}};
  pair.moved = farthest(pair.own, pair.pinned, ScatterPair::kMoved);
  return pair;
}

std::vector<Index> tokens_within(const Scatter& scatter, std::span<const AxisPoint> polygon) {
  std::vector<Index> tokens;
  if (polygon.size() < 3) return tokens;
  AxisPoint low = polygon.front(), high = polygon.front();
  for (const AxisPoint& corner : polygon) {
    if (!std::isfinite(corner.x) || !std::isfinite(corner.y)) return tokens;
    low = {std::min(low.x, corner.x), std::min(low.y, corner.y)};
    high = {std::max(high.x, corner.x), std::max(high.y, corner.y)};
  }
  // Edges by the strips of y that they cross: a drawn lasso has hundreds, of which a point meets a few.
  constexpr Index kStrips = 256;
  ScatterAxis height;
  height.low = low.y;
  height.high = high.y;
  if (!(low.y < high.y)) return tokens;
  std::vector<std::vector<std::size_t>> strips(kStrips);
  const auto end_of = [&](std::size_t edge) { return (edge + 1) % polygon.size(); };
  for (std::size_t edge = 0; edge < polygon.size(); ++edge) {
    const double a = polygon[edge].y, b = polygon[end_of(edge)].y;
    for (Index s = cell_of(std::min(a, b), height, kStrips); s <= cell_of(std::max(a, b), height, kStrips);
         ++s)
      strips[s].push_back(edge);
  }
  for (const ScatterPoint& point : scatter.points) {
    if (!(point.at.x >= low.x && point.at.x <= high.x && point.at.y >= low.y && point.at.y <= high.y))
      continue;
    bool inside = false;
    for (const std::size_t edge : strips[cell_of(point.at.y, height, kStrips)])
      inside ^= within(polygon[edge], polygon[end_of(edge)], point.at);
    if (inside) tokens.push_back(point.token);
  }
  return tokens;
}

std::optional<ScatterPoint> nearest(const Scatter& scatter, AxisPoint place, AxisPoint unit, double reach) {
  std::optional<ScatterPoint> found;
  double least = reach;
  for (const ScatterPoint& point : scatter.points) {
    const double distance = std::hypot((point.at.x - place.x) / unit.x, (point.at.y - place.y) / unit.y);
    if (found ? distance < least : distance <= least) {
      least = distance;
      found = point;
    }
  }
  return found;
}

namespace {

std::span<const double> values_of(const ScatterFacts& facts, TokenMetric metric) {
  const Matrix<double>& m = (*facts.head->tokens)[metric];
  return {m.data(), static_cast<std::size_t>(m.size())};
}

/// Coordinates of the points on one axis: values, or ranks from 1 on.
std::vector<double> axis_values(std::span<const double> values, std::span<const std::int32_t> place,
                                ScatterAxes axes) {
  std::vector<double> at(values.begin(), values.end());
  if (axes == ScatterAxes::rank)
    for (std::size_t p = 0; p < at.size(); ++p)
      if (std::isfinite(at[p])) at[p] = place[p] + 1;
  return at;
}
std::vector<double> x_values(const ScatterFacts& facts) {
  return axis_values(values_of(facts, facts.score), facts.score_place, facts.axes);
}
std::vector<double> y_values(const ScatterFacts& facts) {
  return axis_values(values_of(facts, facts.reference), facts.reference_place, facts.axes);
}

ScatterOptions options_of(ScatterAxes axes) {
  ScatterOptions options;
  if (axes != ScatterAxes::log) options.x = options.y = ScaleKind::linear;
  return options;
}

std::vector<Index> farthest_in_rank(const ScatterFacts& facts, std::size_t most) {
  std::vector<std::pair<std::int64_t, Index>> apart;  // how near, token
  for (const ScatterPoint& point : facts.scatter.points) {
    const std::int64_t places = facts.score_place[point.token] - facts.reference_place[point.token];
    if (places != 0) apart.emplace_back(-std::abs(places), point.token);
  }
  const auto end = apart.begin() + static_cast<std::ptrdiff_t>(std::min(most, apart.size()));
  std::partial_sort(apart.begin(), end, apart.end());
  std::vector<Index> tokens;
  for (auto one = apart.begin(); one != end; ++one) tokens.push_back(one->second);
  return tokens;
}

}  // namespace

ScatterFacts scatter_facts(std::shared_ptr<const HeadSummary> head, TokenMetric score, TokenMetric reference,
                           ScatterAxes axes) {
  ScatterFacts facts;
  facts.head = std::move(head);
  facts.score = score;
  facts.reference = reference;
  facts.axes = axes;
  const Ranking of_score(values_of(facts, score)), of_reference(values_of(facts, reference));
  facts.agreement = agreement(of_score, of_reference, TokenPair{score, reference}.same_unit());
  facts.score_place = of_score.place();
  facts.reference_place = of_reference.place();
  facts.scatter = scatter(x_values(facts), y_values(facts), options_of(axes));
  facts.outliers = farthest_in_rank(facts, ScatterFacts::kOutliers);
  return facts;
}

ScatterPair scatter_pair(const ScatterFacts& own, const ScatterFacts& pinned) {
  return scatter_pair(x_values(own), y_values(own), x_values(pinned), y_values(pinned), options_of(own.axes));
}

double ScatterCut::recall() const {
  return k > 0 ? static_cast<double>(both()) / static_cast<double>(k) : kNone;
}

ScatterCut scatter_cut(const ScatterFacts& facts, const Scatter& on, Index k) {
  ScatterCut cut;
  cut.n = std::ssize(facts.score_place);
  cut.k = std::clamp<Index>(k, 0, cut.n);
  std::array<double, 2> x{kNone, kNone}, y{kNone, kNone};  // of the last that is kept, and of the next
  const std::vector<double> of_x = x_values(facts), of_y = y_values(facts);
  for (Index p = 0; p < cut.n; ++p) {
    const Index by_score = facts.score_place[p], by_reference = facts.reference_place[p];
    cut.lost += by_reference < cut.k && by_score >= cut.k ? 1 : 0;
    for (const Index next : {0, 1}) {
      if (by_score == cut.k - 1 + next) x[next] = on.x.coordinate(of_x[p]);
      if (by_reference == cut.k - 1 + next) y[next] = on.y.coordinate(of_y[p]);
    }
  }
  const auto middle = [](const std::array<double, 2>& ends) {
    const double at = ends[0] / 2 + ends[1] / 2;
    return std::isnan(at) ? std::nullopt : std::optional(at);
  };
  cut.x = middle(x);
  cut.y = middle(y);
  return cut;
}

}  // namespace kvreplay::viewer
