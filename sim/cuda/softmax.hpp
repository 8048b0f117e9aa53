#pragma once

#include "sim/cuda/kernel.hpp"

// What kernels that form a softmax share.

namespace kvreplay::cuda {

/// The logit of what a row does not see.
constexpr float kHidden = -INFINITY;

/// exp(x - max), 0 where x is hidden.
KVREPLAY_DEVICE float weight(float x, float max) { return x > kHidden ? fast_exp(x - max) : 0.0F; }

/// Neither an infinity nor NaN.
template <class T>
KVREPLAY_DEVICE bool finite(T x) {
  return x - x == 0;
}

/// The sum over a warp's lanes, the same in all of them.
KVREPLAY_DEVICE double warp_sum(double value) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) value += shuffle_xor(value, mask);
  return value;
}

KVREPLAY_DEVICE float warp_largest(float value) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) value = larger(value, shuffle_xor(value, mask));
  return value;
}

}  // namespace kvreplay::cuda
