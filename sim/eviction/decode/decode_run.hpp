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

// What a run of the decoding replay asks for, for every fast twin.

namespace kvreplay {

// The fast decoding replay's scores: of one step's rows, their sums over steps, and CAOTE of those sums.

/// Whether token_differences is needed.
inline bool needs_differences(const Decoding& decoding) {
  return by_query_head(decoding.rank) ||
         (decoding.rank == CacheRank::row_sums && needs_difference(decoding.score));
}

/// Scores of a cache's tokens by slot, summed over all steps or over the last `window` ones. Rows are
/// [width][capacity].
class ScoreSums {
 public:
  ScoreSums(Index width, Index capacity, std::optional<Index> window);

  double* new_row();  ///< to be filled for the slots there are; then:
  void add_row();     ///< the row takes part in the sums
  double* sums(Index w) { return sums_.data() + w * capacity_; }
  void clear(Index slot);
  void move(Index from, Index to);

 private:
  // A window is made of the rows since the last multiple of N steps, whose sum runs along, and of the older
  // rows that it still holds: their sums were taken from the newest back once, at that multiple. Nothing is
  // ever subtracted: small scores would drown in what a large one leaves behind.
  Index width_, capacity_, window_, step_ = 0;
  std::vector<double> row_, newer_, sums_;
  std::vector<std::vector<double>>
      older_;  // [window]: rows up to step_ of the new ones, then sums of the old

  template <class Body>
  void each_vector(const Body& body) {
    body(row_);
    body(newer_);
    body(sums_);
    for (std::vector<double>& row : older_) body(row);
  }
};

/// One step's scores.
template <class T>
class RowScores {
 public:
  RowScores(const HeadGroup<T>& group, TokenMetric metric, Index capacity);

  /// row := scores of the rows of all query heads, summed, or their attention one by one where by_query_head.
  void take(const AttentionRows<T>& attention, const TokenSlots<T>& slots, double* row);

  /// rank[slot] := the caote or fastcaote of every query head's summed attention, summed.
  void take_caote(ScoreSums& attention, const TokenSlots<T>& slots, const Vector<double>& plain_mean,
                  double* rank);

 private:
  const HeadGroup<T>& group_;
  const TokenMetric metric_;
  const Decoding decoding_;
  Index capacity_;
  hwy::AlignedFreeUniquePtr<T[]> base_;              // [G][d_v]
  hwy::AlignedFreeUniquePtr<T[]> square_, product_;  // [G][capacity]
  hwy::AlignedFreeUniquePtr<T[]> weights_, sums_;    // caote: [G][capacity], [panels][G][W]

  template <class Formula>
  void add_head(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g, double* row) const;
  double of_top(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g) const;
  /// The differences of the tokens from base_, of m vectors.
  void take_differences(const TokenSlots<T>& slots);
};

/// What sums over steps, or the tokens' own numbers, rank a cache by; at intervals they do not. Throws
/// std::invalid_argument for a rule that why_not_in_decoding(), or why_not_at_intervals().
inline Decoding decoding_of(const EvictionRule& rule, const DecodeOptions& options) {
  if (options.interval > 0) {
    if (why_not_at_intervals(rule)) throw std::invalid_argument("a rule that cannot rank at intervals");
    return {};
  }
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
