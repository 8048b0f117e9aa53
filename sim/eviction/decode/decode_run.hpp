#pragma once

#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/decode/decode_scores.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <algorithm>

// What a run of the decoding replay asks for, for every fast twin.

namespace kvreplay {

inline bool ranks_by_rows(const EvictionRule& rule) { return rule.metric && sums_rows(*rule.metric); }

/// The steps whose scores count; unset: all, and the prompt's.
inline std::optional<Index> steps_counted(const EvictionRule& rule, const DecodeOptions& options) {
  if (options.window) return std::max<Index>(*options.window, 1);
  return rule.policy.base == Base::tova ? std::optional<Index>(1) : std::nullopt;
}

template <class T>
Rows decode_steps(const HeadGroup<T>& group) {
  return {std::min(std::max(group.l, group.first_query()), group.T_all()), group.T_all()};
}

/// Rows of sums: one for each query head, or one for all.
template <class T>
Index width_of_sums(const HeadGroup<T>& group, const EvictionRule& rule) {
  return rule.metric && by_query_head(*rule.metric) ? group.G() : 1;
}

/// The most tokens that a cache holds at any time.
template <class T>
Index most_tokens(const HeadGroup<T>& group, const KeptSet& start, Index budget, bool append_only) {
  const Index first = count(start), steps = group.T_all() - group.l;
  return (append_only ? first + steps : std::min(std::max(first, budget), first + steps)) + 1;
}

}  // namespace kvreplay
