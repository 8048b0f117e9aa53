#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <span>
#include <vector>

// TriAttention (arXiv 2604.04921): a key is worth what queries at its distance from the positions to come
// would give it if all of them, their rotation undone, lay where they do in the mean.

namespace kvreplay {

/// The positions to come that count, from the next one on: 1, 2, 4 .. 65536 (the authors' code).
inline constexpr Index kTriAttentionOffsets = 17;

/// Scores of TriAttention. Every pair of channels f of a query head has the mean c_f of the prompt's
/// un-rotated queries, as complex numbers, and the mean m_f of their absolute values. The score of an
/// un-rotated key k at position p, for a cache of `next` positions, is
///
///   s = sum over f of |c_f| |k_f| cos(w_f (next - p + delta) + arg c_f - arg k_f) + (m_f - |c_f|) |k_f|,
///
/// averaged over the offsets delta. Channels that do not rotate are numbers of their own, with w = 0. The
/// authors calibrate c and m on other text; here they are those of the dump's prompt.
template <class T>
class TriAttention {
 public:
  /// Needs the rotation, and queries of the prompt: those that are there count. O(G l d). Refers to the
  /// group.
  TriAttention(const HeadGroup<T>& group, Workers& workers);

  /// s of the keys at `tokens` less their mean, over their standard deviation (at least 1e-6), of the query
  /// head that has the most: [tokens]. Adding offsets up first, it takes O(G |tokens| d).
  Vector<double> scores(std::span<const Index> tokens, Index next) const;

 private:
  struct Centre {
    Vector<double> re, im, spread;  ///< c, and m - |c|, of each pair, then of each channel that does not turn
  };
  const HeadGroup<T>& group_;
  std::vector<Centre> centres_;           // [G]
  Vector<double> offset_re_, offset_im_;  // of each pair: the mean of e^(i w delta)
};

/// Reference of scores(), one head, token and offset at a time.
Vector<double> triattention_reference(const HeadGroup<double>& group, std::span<const Index> tokens,
                                      Index next);

}  // namespace kvreplay
