#pragma once

#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/decode/decode_scores.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <algorithm>
#include <stdexcept>

// What a run of the decoding replay asks for, for every fast twin.

namespace kvreplay {

/// Throws std::invalid_argument for a rule that why_not_in_decoding().
inline Decoding decoding_of(const EvictionRule& rule) {
  if (why_not_in_decoding(rule)) throw std::invalid_argument("a rule that cannot rank while decoding");
  return rule.metric ? kTokenMetrics[*rule.metric].decoding : by_own(OwnScore::position);
}

/// Whether scores of rows are summed.
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

/// The most tokens that a cache holds at any time.
template <class T>
Index most_tokens(const HeadGroup<T>& group, const KeptSet& start, Index budget, bool append_only) {
  const Index first = count(start), steps = group.T_all() - group.l;
  return (append_only ? first + steps : std::min(std::max(first, budget), first + steps)) + 1;
}

}  // namespace kvreplay
