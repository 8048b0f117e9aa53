#include "viewer/work/window_curves.hpp"

#include "analysis/results/agreement.hpp"
#include "sim/backend.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvreplay::viewer {
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

std::size_t bytes_of(const WindowMetrics& metrics) {
  std::size_t bytes = sizeof(metrics);
  for (const TokenMetrics& one : metrics.metrics) bytes += bytes_of(one);
  return bytes;
}

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
