#include "viewer/questions/score_curves.hpp"

#include "sim/backend.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {

ScoreCurve::ScoreCurve(const Ranking& score, const Ranking& reference)
    : common_(score.size() + 1, 0),
      held_(score.size() + 1, 0),
      left_(score.size() + 1, 0),
      total_(reference.total()) {
  assert(score.size() == reference.size());
  const std::size_t n = score.size();
  const std::span<const double> e = reference.values();
  for (std::size_t j = 0; j < n; ++j) {
    const auto p = static_cast<std::size_t>(score.order()[j]);
    held_[j + 1] = held_[j] + e[p];
    // In both top-k sets as soon as k is above both places.
    ++common_[std::max(j, static_cast<std::size_t>(reference.place()[p])) + 1];
  }
  for (std::size_t k = 0; k < n; ++k) common_[k + 1] += common_[k];
  // From the end, compensated (Neumaier), so that a small loss is a sum of small numbers.
  double sum = 0, lost = 0;
  for (std::size_t j = n; j-- > 0;) {
    const double value = e[score.order()[j]];
    const double next = sum + value;
    lost += std::abs(sum) >= std::abs(value) ? (sum - next) + value : (value - next) + sum;
    sum = next;
    left_[j] = std::isfinite(sum) ? sum + lost : sum;
  }
}

CurvePoint ScoreCurve::at(Index k) const {
  const auto at = static_cast<std::size_t>(std::clamp<Index>(k, 0, static_cast<Index>(n())));
  return {at == 0 ? kNone : static_cast<double>(common_[at]) / static_cast<double>(at),
          total_ > 0 ? held_[at] / total_ : kNone, left_[at]};
}

std::vector<Index> log_spaced(Index n, std::size_t most) {
  std::vector<Index> budgets;
  if (n <= 0) return budgets;
  most = std::max<std::size_t>(most, 2);
  if (static_cast<std::size_t>(n) <= most) {
    for (Index k = 1; k <= n; ++k) budgets.push_back(k);
    return budgets;
  }
  const double step = std::log(static_cast<double>(n)) / static_cast<double>(most - 1);
  for (std::size_t i = 0; i + 1 < most; ++i) {
    const auto k = static_cast<Index>(std::floor(std::exp(step * static_cast<double>(i)) + 0.5));
    if (k < n && (budgets.empty() || k > budgets.back())) budgets.push_back(k);
  }
  budgets.push_back(n);
  return budgets;
}

const ScoreCurves::Curve* ScoreCurves::find(TokenMetric score) const {
  const auto found =
      std::find_if(curves.begin(), curves.end(), [&](const Curve& curve) { return curve.score == score; });
  return found == curves.end() ? nullptr : &*found;
}

std::size_t bytes_of(const ScoreCurves& curves) {
  std::size_t bytes = sizeof(curves) + curves.budgets.size() * sizeof(Index);
  for (const ScoreCurves::Curve& curve : curves.curves)
    bytes += sizeof(curve) + curve.exact.bytes() + 3 * curve.recall.size() * sizeof(double);
  return bytes;
}

ScoreCurves score_curves(const TokenMetrics& metrics, const MetricSet& scores, TokenMetric reference,
                         Index compared, std::size_t most_points, Workers& workers) {
  assert(metrics[reference].size() > 0);
  ScoreCurves result;
  result.reference = reference;
  result.n = std::clamp<Index>(compared, 0, metrics[reference].cols());
  result.budgets = log_spaced(result.n, most_points);
  const auto ranking_of = [&](TokenMetric m) {
    return Ranking(std::span(metrics[m].data(), static_cast<std::size_t>(result.n)));
  };
  const Ranking of_reference = ranking_of(reference);
  result.total = of_reference.total();

  std::vector<TokenMetric> wanted;
  for (const TokenMetric m : kTokenMetrics.all())
    if (scores.contains(m) && metrics[m].size() > 0) wanted.push_back(m);
  std::vector<std::optional<ScoreCurves::Curve>> curves(wanted.size());
  workers.parallel_for(std::ssize(wanted), [&](Index at) {
    const TokenMetric score = wanted[at];
    ScoreCurves::Curve curve{score,
                             score == reference ? ScoreCurve(of_reference, of_reference)
                                                : ScoreCurve(ranking_of(score), of_reference),
                             {},
                             {},
                             {}};
    for (const Index k : result.budgets) {
      const CurvePoint point = curve.exact.at(k);
      curve.recall.push_back(point.recall);
      curve.mass.push_back(point.mass);
      curve.loss.push_back(point.loss);
    }
    curves[at] = std::move(curve);
  });
  for (auto& curve : curves) result.curves.push_back(std::move(*curve));
  return result;
}

namespace {

bool looks_at_window(TokenMetric metric) { return kTokenMetrics[metric].rows == MetricRows::window; }

Ranking ranking_of(const Matrix<double>& values) {
  return Ranking({values.data(), static_cast<std::size_t>(values.size())});
}

/// Share of the reference's k largest among the last `reserve` tokens and the score's k - reserve largest of
/// the others.
double recall(const Ranking& score, const Ranking& reference, Index k, Index reserve) {
  const Index others = static_cast<Index>(score.size()) - reserve;
  const auto wanted = [&](Index p) { return reference.place()[static_cast<std::size_t>(p)] < k; };
  Index hits = 0, taken = reserve;
  for (Index p = others; p < others + reserve; ++p) hits += wanted(p) ? 1 : 0;
  for (auto p = score.order().begin(); taken < k; ++p)
    if (*p < others) ++taken, hits += wanted(*p) ? 1 : 0;
  return static_cast<double>(hits) / static_cast<double>(k);
}

}  // namespace

WindowMetrics window_metrics(const HeadGroup<float>& group, const MetricSet& wanted,
                             std::optional<Index> query_head, const Compute& compute) {
  WindowMetrics found;
  const Index rows = window_rows(group.l, group.first_query(), group.l).count();
  for (Index w = 1; w < rows; w *= 2) found.windows.push_back(w);
  if (rows > 0) found.windows.push_back(rows);
  TokenOptions options;
  options.per_query_head = query_head.has_value();
  options.metrics = wanted;
  for (const Index window : found.windows) {
    options.window = window;
    TokenMetrics metrics = compute.backend.token_metrics(group, options, compute.workers);
    for (const TokenMetric m : kTokenMetrics.all()) {
      if (query_head && metrics[m].size() > 0) metrics[m] = metrics[m].row(*query_head).eval();
      if (!found.metrics.empty() && !looks_at_window(m)) metrics[m] = found.metrics.front()[m];
      if (!looks_at_window(m)) options.metrics.erase(m);
    }
    found.metrics.push_back(std::move(metrics));
  }
  return found;
}

std::size_t bytes_of(const WindowCurves& curves) {
  return sizeof(curves) +
         curves.curves.size() * (sizeof(WindowCurves::Curve) + 2 * curves.windows.size() * sizeof(double));
}

WindowCurves window_curves(const WindowMetrics& metrics, TokenMetric reference, Index k, Index reserve,
                           Workers& workers) {
  WindowCurves result;
  result.reference = reference;
  result.k = k;
  result.reserve = reserve;
  result.windows = metrics.windows;
  if (metrics.windows.empty()) return result;
  const bool reserves = reserve > 0 && reserve < k;
  for (const TokenMetric m : kTokenMetrics.all())
    if (looks_at_window(m) && m != reference && metrics.metrics.front()[m].size() > 0)
      result.curves.push_back({m, std::vector<double>(metrics.windows.size()),
                               std::vector<double>(reserves ? metrics.windows.size() : 0)});
  workers.parallel_for(std::ssize(metrics.windows), [&](Index w) {
    const TokenMetrics& values = metrics.metrics[static_cast<std::size_t>(w)];
    assert(values[reference].size() >= k);
    const Ranking of_reference = ranking_of(values[reference]);
    for (WindowCurves::Curve& curve : result.curves) {
      const Ranking score = ranking_of(values[curve.score]);
      const auto at = static_cast<std::size_t>(w);
      curve.recall[at] = recall(score, of_reference, k, 0);
      if (reserves) curve.reserved[at] = recall(score, of_reference, k, reserve);
    }
  });
  return result;
}

}  // namespace kvreplay::viewer
