#pragma once

#include "data/dtype.hpp"
#include "sim/backend.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// A small head group, and what a backend makes of it.

namespace kvreplay::test {

inline constexpr Index kLength = 70;
inline constexpr RowRange kRows{40, 78};

inline const HeadGroup<float>& group() {
  static const HeadGroup<float> group = to_float(random_group({.l = kLength, .T = 78, .G = 2}));
  return group;
}
inline const HeadGroup<double>& wide_group() {
  static const HeadGroup<double> wide = to_double(group());
  return wide;
}

inline Workers& workers() {
  static Workers workers(1);
  return workers;
}

inline const std::vector<KeptSet>& sets() {
  static const std::vector<KeptSet> sets{KeptSet(kLength, 1), [] {
                                           KeptSet odd(kLength, 0);
                                           for (std::size_t p = 1; p < odd.size(); p += 2) odd[p] = 1;
                                           return odd;
                                         }()};
  return sets;
}

/// All numbers of a result, in a row.
inline Matrix<double> numbers(const TokenMetrics& metrics) {
  Matrix<double> all = Matrix<double>::Zero(std::ssize(kTokenMetrics), kLength);
  for (const TokenMetric m : kTokenMetrics.all())
    if (metrics[m].size() > 0) all.row(static_cast<Index>(m)) = metrics[m].row(0);
  return all;
}
template <class T>
Matrix<double> numbers(const OutputChanges<T>& changes) {
  std::vector<double> all{changes.full_sq};
  all.insert(all.end(), changes.change_sq.begin(), changes.change_sq.end());
  for (const PanelRows<T>& change : changes.change)
    for (const std::vector<T>& head : change) all.insert(all.end(), head.begin(), head.end());
  return Eigen::Map<const Matrix<double>>(all.data(), 1, std::ssize(all));
}
inline Matrix<double> numbers(const KeptSet& kept) {
  Matrix<double> all(1, std::ssize(kept));
  for (std::size_t p = 0; p < kept.size(); ++p) all(0, static_cast<Index>(p)) = kept[p];
  return all;
}
inline Matrix<double> numbers(const ChannelBasis& basis) {
  Matrix<double> all(3 * basis.window.rows(), basis.window.cols());
  all << basis.window, basis.future, basis.scores.outputs;
  return all;
}

inline TokenOptions all_metrics() {
  TokenOptions options;
  options.metrics = available_metrics(wide_group());
  return options;
}

using Numbers = std::function<Matrix<double>(const Backend&)>;

/// What a backend computes, in float32, by the device's twin alone, and in float64.
struct Dispatched {
  std::string name;
  Numbers single;
  std::function<Matrix<double>()> twin;
  Numbers exact;
};

template <class T>
const HeadGroup<T>& group_of() {
  if constexpr (std::is_same_v<T, float>)
    return group();
  else
    return wide_group();
}

template <class T>
Matrix<double> metrics_of(const Backend& backend) {
  return numbers(backend.token_metrics(group_of<T>(), all_metrics(), workers()));
}
template <class T>
Matrix<double> changes_of(const Backend& backend) {
  return numbers(backend.output_changes(group_of<T>(), kRows, caches_of<T>(sets()), true, workers()));
}
template <class T>
Matrix<double> interaction_of(const Backend& backend) {
  return backend.output_interaction(group_of<T>(), kRows, prompt_keys(kLength, 5), workers());
}

inline std::vector<Dispatched> dispatched() {
  return {
      {"token_metrics", metrics_of<float>,
       [] { return numbers(token_metrics_cuda(group(), all_metrics(), workers())); }, metrics_of<double>},
      {"output_changes", changes_of<float>,
       [] { return numbers(output_changes_cuda(group(), kRows, caches_of<float>(sets()), true, workers())); },
       changes_of<double>},
      {"output_interaction", interaction_of<float>,
       [] { return output_interaction_cuda(group(), kRows, prompt_keys(kLength, 5), workers()); },
       interaction_of<double>},
  };
}

inline EvictionRule rule_named(EvictionBase base, Index budget) {
  Policy policy;
  policy.base = base;
  return rule_of(policy, Semantics::paper, {}, kLength, budget, false);
}

/// What asks a backend on its way to something else.
inline std::vector<std::pair<std::string, Numbers>> callers() {
  return {
      {"rule_scores",
       [](const Backend& backend) -> Matrix<double> {
         const EvictionRule rule = rule_named(EvictionBase::snapkv, 10);
         return rule_scores(group(), std::span(&rule, 1), {}, {workers(), backend})[0].transpose();
       }},
      {"evict_in_blocks",
       [](const Backend& backend) {
         return numbers(
             evict_in_blocks(group(), rule_named(EvictionBase::h2o, 12), 12, 16, {workers(), backend}));
       }},
      {"decode_start_scores",
       [](const Backend& backend) {
         return decode_start_scores(group(), rule_named(EvictionBase::h2o, 12), {}, {workers(), backend});
       }},
      {"channel_basis",
       [](const Backend& backend) {
         return numbers(channel_basis(group(), sets()[1], {Semantics::official, 5, 16, std::nullopt}, true,
                                      {workers(), backend}));
       }},
  };
}

/// Tolerance between the float32 results of two backends.
inline constexpr Tolerance kBackends{1e-5, 1e-2, 1e-3, 1e-30};

}  // namespace kvreplay::test
