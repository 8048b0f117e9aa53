#pragma once

#include "data/dump.hpp"

#include <cmath>

namespace kvreplay {

/// The channels of a pair that rotates by one angle.
struct RotatedPair {
  Index first, second;
};
inline RotatedPair rotated_pair(const Rope& rope, Index j) {
  if (rope.style == Rope::Style::half) return {j, j + rope.rotary_dim / 2};
  return {2 * j, 2 * j + 1};
}

/// x [d] as it would be `positions` further on: as undone, and rotated again.
template <class T>
void rotate_by(const Rope& rope, Index positions, T* x) {
  for (Index j = 0; j < rope.rotary_dim / 2; ++j) {
    const double angle = static_cast<double>(positions) * rope.inv_freq[j], cos = std::cos(angle),
                 sin = std::sin(angle);
    const auto [a, b] = rotated_pair(rope, j);
    const double first = x[a], second = x[b];
    x[a] = static_cast<T>(first * cos - second * sin);
    x[b] = static_cast<T>(first * sin + second * cos);
  }
}

}  // namespace kvreplay
