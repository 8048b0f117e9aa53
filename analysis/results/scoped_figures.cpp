#include "analysis/results/scoped_figures.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay {

double relative_error(double change_sq, double full_sq) {
  if (change_sq == 0) return 0;
  const double error = change_sq / full_sq;
  return full_sq >= std::numeric_limits<double>::min() && std::isfinite(error) ? error : kNan;
}

RowRange ScopedFigures::heads_in(Scope scope) const {
  if (!scope.layer) return {0, figures_.values.rows()};
  const Index first = *scope.layer * figures_.n_kv;
  if (!scope.head) return {first, first + figures_.n_kv};
  return {first + *scope.head, first + *scope.head + 1};
}

std::vector<Index> ScopedFigures::layers_in(Scope scope) const {
  if (scope.layer) return {*scope.layer};
  std::vector<Index> all(figures_.layers.size());
  std::iota(all.begin(), all.end(), Index{0});
  return all;
}

std::vector<Scope> ScopedFigures::scopes() const {
  std::vector<Scope> all;
  const Index layers = std::ssize(figures_.layers);
  for (Index layer = 0; layer < layers; ++layer) {
    for (Index head = 0; head < figures_.n_kv; ++head) all.push_back({layer, head});
    all.push_back({layer, std::nullopt});
  }
  if (layers > 0) all.push_back({});
  return all;
}

double ScopedFigures::sum(Scope scope, Index column) const {
  const RowRange heads = heads_in(scope);
  if (heads.count() == 1) return figures_.values(heads.begin, column);
  const Vector<double> all = figures_.values.col(column).segment(heads.begin, heads.count());
  return compensated_sum({all.data(), static_cast<std::size_t>(all.size())});
}

double ScopedFigures::mean(Scope scope, Index column) const {
  const RowRange heads = heads_in(scope);
  std::vector<double> values;
  for (Index row = heads.begin; row < heads.end; ++row)
    if (!std::isnan(figures_.values(row, column))) values.push_back(figures_.values(row, column));
  return values.empty() ? kNan : compensated_sum(values) / static_cast<double>(values.size());
}

double ScopedFigures::median_head(const std::function<std::optional<double>(Scope)>& value_of) const {
  std::vector<double> values;
  for (const Scope scope : scopes()) {
    if (!scope.head) continue;
    const std::optional<double> found = value_of(scope);
    if (found && !std::isnan(*found)) values.push_back(*found);
  }
  return quantile(values, 0.5);
}

std::string with_median_head(double of_all, double of_median_head) {
  return std::isnan(of_all) ? "-" : fmt::format("{:.3g} / {:.3g}", of_all, of_median_head);
}

std::optional<double> ScopedFigures::common(Scope scope, Index column) const {
  const RowRange heads = heads_in(scope);
  const auto values = figures_.values.col(column).segment(heads.begin, heads.count());
  if (values.minCoeff() != values.maxCoeff()) return std::nullopt;
  return values[0];
}

std::optional<Index> ScopedFigures::layer_of(Scope scope) const {
  if (!scope.layer) return std::nullopt;
  return figures_.layers[*scope.layer];
}

}  // namespace kvreplay
