#include "viewer/work/token_statistics.hpp"

#include "analysis/results/agreement.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// Whether `a` at position p ranks before `b` at position q.
bool before(double a, Index p, double b, Index q) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? p < q : std::isnan(b);
  return a == b ? p < q : a > b;
}

std::span<const double> values_of(const TokenMetrics& tokens, TokenMetric metric) {
  return {tokens[metric].data(), static_cast<std::size_t>(tokens[metric].size())};
}

/// What a share is taken of; NaN where shares mean nothing.
double whole(std::span<const double> values, double sum) {
  const bool negative = std::any_of(values.begin(), values.end(), [](double v) { return !(v >= 0); });
  return negative || sum <= 0 ? kNone : sum;
}

}  // namespace

Index rank_of(std::span<const double> values, Index position) {
  const double value = values[position];
  Index rank = 1;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (before(values[i], static_cast<Index>(i), value, position)) ++rank;
  return rank;
}

std::vector<Index> largest_of(std::span<const double> values, std::span<const Index> positions,
                              std::size_t most) {
  std::vector<Index> found;
  const auto value = [&](Index p) { return values[p]; };
  for (const Index p : positions)
    if (p >= 0 && p < std::ssize(values) && !std::isnan(value(p))) found.push_back(p);
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(std::min(most, found.size()));
  std::partial_sort(found.begin(), end, found.end(),
                    [&](Index p, Index q) { return before(value(p), p, value(q), q); });
  found.erase(end, found.end());
  return found;
}

std::vector<TokenFigure> figures_of_token(const HeadSummary& summary, Index token) {
  std::vector<TokenFigure> figures;
  if (!summary.tokens || token < 0 || token >= summary.l) return figures;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (!summary.metrics.contains(metric)) continue;
    const std::span<const double> values = values_of(*summary.tokens, metric);
    const double value = values[token];
    figures.push_back({metric, value, rank_of(values, token),
                       value / whole(values, summary.sums[static_cast<std::size_t>(metric)])});
  }
  return figures;
}

std::vector<SelectionFigure> figures_of_tokens(const HeadSummary& summary, std::span<const Index> tokens) {
  std::vector<SelectionFigure> figures;
  if (!summary.tokens) return figures;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (!summary.metrics.contains(metric)) continue;
    const std::span<const double> values = values_of(*summary.tokens, metric);
    std::vector<double> chosen;
    for (const Index token : tokens)
      if (token >= 0 && token < summary.l) chosen.push_back(values[token]);
    const double sum = compensated_sum(chosen);
    figures.push_back({metric, sum, sum / whole(values, summary.sums[static_cast<std::size_t>(metric)])});
  }
  return figures;
}

}  // namespace kvreplay::viewer
