#pragma once

#include "sim/cuda/softmax.hpp"
#include "sim/eviction/exact/cuda/exact_error_device.hpp"

// Functions shared by the kernels over rows and over columns.

namespace kvreplay::cuda {

KVREPLAY_DEVICE ErrorColumn shuffle_xor(const ErrorColumn& c, int mask) {
  return {shuffle_xor(c.weight, mask), static_cast<Index>(shuffle_xor(static_cast<int>(c.column), mask))};
}

/// join over the threads of a block's first `warps` warps, the same in all threads; the others' values do not
/// count. All threads call. The order is fixed. `shared`: a T for each warp.
template <class T, class Join>
KVREPLAY_DEVICE T over_block(T value, int warps, T* shared, Join join) {
  if (warp_id() < warps) {
    KVREPLAY_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) value = join(value, shuffle_xor(value, mask));
    if (lane_id() == 0) shared[warp_id()] = value;
  }
  sync_block();
  value = shared[0];
  for (int w = 1; w < warps; ++w) value = join(value, shared[w]);
  sync_block();
  return value;
}

struct Plus {
  template <class T>
  KVREPLAY_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <class T>
  KVREPLAY_DEVICE T operator()(T a, T b) const {
    return larger(a, b);
  }
};

/// a . b, the same to the bit in all lanes and with a and b exchanged. A warp calls.
KVREPLAY_DEVICE double warp_dot(const double* a, const double* b, int width) {
  double sum = 0;
  for (int k = lane_id(); k < width; k += 32) sum += a[k] * b[k];
  return warp_sum(sum);
}

KVREPLAY_DEVICE double* row_of(double* matrix, int row, int width) {
  return matrix + static_cast<std::ptrdiff_t>(row) * width;
}
KVREPLAY_DEVICE const double* row_of(const double* matrix, int row, int width) {
  return matrix + static_cast<std::ptrdiff_t>(row) * width;
}

KVREPLAY_DEVICE double& entry(const ErrorTable& t, int row, int column, ErrorEntry which) {
  const std::ptrdiff_t tile = static_cast<std::ptrdiff_t>(column / kErrorTile) * t.rows + row;
  return t.entries[(tile * kErrorEntries + which) * kErrorTile + column % kErrorTile];
}

KVREPLAY_DEVICE int column_of(const ErrorTable& t, ErrorToken token) {
  return token.column >= 0 ? token.column : token.position >= 0 ? t.column[token.position] : -1;
}

}  // namespace kvreplay::cuda
