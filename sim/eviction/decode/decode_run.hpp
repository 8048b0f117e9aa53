#pragma once

#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/decode/decode_cache.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/tokens/row_scores.hpp"
#include "sim/tokens/token_facts.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

// A run of the decoding replay, resolved from its rule and options, for every fast version.

namespace kvreplay {

/// True if the policy needs TokenSlots' value tiles.
inline bool needs_differences(const Decoding& decoding) {
  return by_query_head(decoding.rank) ||
         (decoding.rank == CacheRank::row_sums && needs_difference(decoding.score));
}

/// Ranking by sums over steps or by the tokens' own numbers; none at intervals and by lot. Throws
/// std::invalid_argument for a rule that why_not_in_decoding(), or why_not_at_intervals().
inline Decoding decoding_of(const EvictionRule& rule, const DecodeOptions& options) {
  if (options.interval > 0) {
    if (why_not_at_intervals(rule)) throw std::invalid_argument("a rule that cannot rank at intervals");
    return {};
  }
  if (why_not_in_decoding(rule)) throw std::invalid_argument("a rule that cannot rank while decoding");
  if (rule.seed) return {};
  return rule.metric ? kTokenMetrics[*rule.metric].decoding : by_own(OwnScore::position);
}

/// True if scores of rows are summed.
inline bool sums_rows(const Decoding& decoding) {
  return decoding.rank == CacheRank::row_sums || by_query_head(decoding.rank);
}

/// The steps whose scores count; unset: all, and the prompt's.
inline std::optional<Index> steps_counted(const EvictionRule& rule, const DecodeOptions& options) {
  if (options.window) return std::max<Index>(*options.window, 1);
  return kBases[rule.policy.base].last_row ? std::optional<Index>(1) : std::nullopt;
}

template <class T>
RowRange decode_steps(const HeadGroup<T>& group) {
  return {std::min(std::max(group.l, group.first_query()), group.T_all()), group.T_all()};
}

/// Rows of sums: one for each query head, one for all, or none.
template <class T>
Index width_of_sums(const HeadGroup<T>& group, const Decoding& decoding) {
  return by_query_head(decoding.rank) ? group.G() : sums_rows(decoding) ? 1 : 0;
}

/// The initial tokens of a run: the tokens of `start` that a later row can see, ascending.
template <class T>
std::vector<Index> start_tokens(const HeadGroup<T>& group, const KeptSet& start) {
  std::vector<Index> tokens = positions(start);
  tokens.erase(tokens.begin(), std::ranges::lower_bound(tokens, group.first_held()));
  return tokens;
}

/// The position where the pinned first tokens of a run end; the run begins with `tokens`. Pinned tokens that
/// a sliding window hides are not replaced.
template <class T>
Index end_of_sinks(const HeadGroup<T>& group, const EvictionRule& rule, const std::vector<Index>& tokens,
                   Index budget) {
  const Index sinks = std::min(rule.sinks, std::max<Index>(budget, 0));
  if (sinks < std::ssize(tokens)) return tokens[sinks];
  return std::min(group.l + sinks - std::ssize(tokens), group.T_all());
}

/// The most tokens that a cache holds at any time.
template <class T>
Index most_tokens(const HeadGroup<T>& group, const KeptSet& start, Index budget,
                  const DecodeOptions& options) {
  const Index first = std::ssize(start_tokens(group, start)), steps = group.T_all() - group.l;
  if (options.append_only) return first + steps + 1;
  return std::min(std::max(first, budget) + std::max<Index>(options.interval - 1, 0), first + steps) + 1;
}

}  // namespace kvreplay
