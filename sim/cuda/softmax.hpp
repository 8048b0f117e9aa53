#pragma once

#include "sim/cuda/kernel.hpp"

// Functions shared by the kernels that form a softmax.

namespace kvreplay::cuda {

/// Logit of a column that a row does not see.
constexpr float kHidden = -INFINITY;

/// exp(x - max), 0 where x is hidden.
KVREPLAY_DEVICE float weight(float x, float max) { return x > kHidden ? fast_exp(x - max) : 0.0F; }

/// Neither an infinity nor NaN.
template <class T>
KVREPLAY_DEVICE bool finite(T x) {
  return x - x == 0;
}

/// Over all lanes of a warp, the same in all of them.
template <class T, class Join>
KVREPLAY_DEVICE T warp_of(T value, Join join) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) value = join(value, shuffle_xor(value, mask));
  return value;
}

KVREPLAY_DEVICE double warp_sum(double value) {
  return warp_of(value, [](double a, double b) { return a + b; });
}
KVREPLAY_DEVICE float warp_largest(float value) {
  return warp_of(value, [](float a, float b) { return larger(a, b); });
}

}  // namespace kvreplay::cuda
