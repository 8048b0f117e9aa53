#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <span>

namespace kvreplay {

/// KeyDiff of a cache that holds some of a group's keys and is ranked again as it changes. Keys are not
/// copied; the sum over the normalised keys is updated when tokens come and go.
template <class T>
class KeyDiff {
 public:
  /// A cache without any of `keys` yet; `keys` and `workers` must outlive it.
  KeyDiff(const HeadMatrix<T>& keys, Workers& workers);

  /// Keys are not read before they are added. O(|tokens| d), as is remove().
  void add(std::span<const Index> tokens);
  void remove(std::span<const Index> tokens) { add(tokens, -1); }

  /// -cos(k_p, mean of the cache's normalised keys) for each of the keys at `tokens`, [tokens]; a zero key
  /// has cosine 0. nan where a key is not finite. O(|tokens| d).
  Vector<double> scores(std::span<const Index> tokens) const;

 private:
  void add(std::span<const Index> tokens, double times);
  /// Calls work(first, count) for some of n tokens at a time.
  template <class Work>
  void for_tokens(Index n, const Work& work) const;

  const HeadMatrix<T>& keys_;
  Workers& workers_;
  Vector<double> per_norm_;  // [keys] 1 / ||k|| of those that were added, 0 of a zero key
  Vector<double> sum_;       // [d] of the normalised keys
};

}  // namespace kvreplay
