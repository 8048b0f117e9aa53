#pragma once

#include "sim/eviction/decode/decode_cache.hpp"
#include "sim/tokens/row_scores.hpp"
#include "sim/tokens/token_facts.hpp"

#include <optional>
#include <vector>

// The fast decoding replay's scores: of one step's rows, their sums over steps, and CAOTE of those sums.

namespace kvreplay {

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

  template <RowScore kScore>
  void add_head(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g, double* row) const;
  double of_top(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g) const;
  /// The differences of the tokens from base_, of m vectors.
  void take_differences(const TokenSlots<T>& slots);
};

}  // namespace kvreplay
