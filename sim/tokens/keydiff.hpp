#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <span>

namespace kvreplay {

/// KeyDiff of a cache that holds some of a group's keys, asked again as the cache changes: nothing of it is
/// copied.
template <class T>
class KeyDiff {
 public:
  /// Of the first n `keys`, which must outlive it, as must `workers`. O(n d).
  KeyDiff(const HeadMatrix<T>& keys, Index n, Workers& workers);

  /// -cos(k_p, mean of the normalised keys) for each of the keys at `tokens`, the mean over them, [tokens]; a
  /// zero key has cosine 0. nan where a key is not finite. O(|tokens| d).
  Vector<double> scores(std::span<const Index> tokens) const;

 private:
  const HeadMatrix<T>& keys_;
  Workers& workers_;
  Vector<double> per_norm_;  // [n] 1 / ||k||, 0 of a zero key
};

}  // namespace kvreplay
