#include "analysis/run/head_split.hpp"

#include <algorithm>
#include <numeric>

namespace kvreplay {

double head_group_cost(const Dump& dump, Index layer) {
  const DumpShape& shape = dump.shape();
  const AttentionRule rule = dump.rule(layer);
  double visible = 0;
  for (Index i = shape.first_query(); i < shape.T; ++i) {
    const Index end = rule.causal ? i + 1 : shape.T;
    const Index first = rule.sliding_window ? std::max<Index>(i + 1 - *rule.sliding_window, 0) : 0;
    visible += static_cast<double>(end - first);
  }
  return static_cast<double>(shape.group()) * visible * static_cast<double>(shape.d + shape.d_v);
}

std::vector<std::size_t> equal_intervals(std::span<const double> costs, int parts) {
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<std::size_t> bounds(static_cast<std::size_t>(parts) + 1, costs.size());
  bounds.front() = 0;
  // An item goes to the interval that its middle falls into.
  double before = 0;
  std::size_t item = 0;
  for (int part = 1; part < parts; ++part) {
    const double end = total * part / parts;
    for (; item < costs.size() && before + costs[item] / 2 < end; ++item) before += costs[item];
    bounds[part] = item;
  }
  return bounds;
}

}  // namespace kvreplay
