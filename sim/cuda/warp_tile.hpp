#pragma once

#include "sim/cuda/kernel.hpp"

// A warp's share of a matrix product, in plain float32 fused multiply-adds: 16 rows by kColumns columns, each
// lane 4 rows by kColumns / 8 columns.

namespace kvreplay::cuda {

template <int kColumns>
struct WarpTile {
  static constexpr int kRows = 4, kCols = kColumns / 8, kLanesARow = 8, kWarpRows = 16;
  float at[kRows][kCols];

  KVREPLAY_DEVICE static int row(int i) { return lane_id() / 8 * kRows + i; }
  KVREPLAY_DEVICE static int col(int j) { return lane_id() % 8 + 8 * j; }

  KVREPLAY_DEVICE void fill(float value) {
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      KVREPLAY_UNROLL
      for (int j = 0; j < kCols; ++j) at[i][j] = value;
    }
  }

  /// += A B^T: A [16][depth] with rows `lda` apart, B [kColumns][depth] with rows `ldb` apart.
  KVREPLAY_DEVICE void add_product_with_transpose(const float* a, int lda, const float* b, int ldb,
                                                  int depth) {
    for (int c = 0; c < depth; ++c) {
      float left[kRows];
      KVREPLAY_UNROLL
      for (int i = 0; i < kRows; ++i) left[i] = a[row(i) * lda + c];
      KVREPLAY_UNROLL
      for (int j = 0; j < kCols; ++j) {
        const float right = b[col(j) * ldb + c];
        KVREPLAY_UNROLL
        for (int i = 0; i < kRows; ++i) at[i][j] = fused(left[i], right, at[i][j]);
      }
    }
  }

  /// += A B: A [16][depth], B [depth][kColumns].
  KVREPLAY_DEVICE void add_product(const float* a, int lda, const float* b, int ldb, int depth) {
    for (int c = 0; c < depth; ++c) {
      float left[kRows];
      KVREPLAY_UNROLL
      for (int i = 0; i < kRows; ++i) left[i] = a[row(i) * lda + c];
      KVREPLAY_UNROLL
      for (int j = 0; j < kCols; ++j) {
        const float right = b[c * ldb + col(j)];
        KVREPLAY_UNROLL
        for (int i = 0; i < kRows; ++i) at[i][j] = fused(left[i], right, at[i][j]);
      }
    }
  }
};

/// The same for all lanes that share the caller's rows of a tile: join(join(a, b), ...) in a fixed order.
template <class Tile, class T, class Join>
KVREPLAY_DEVICE T over_columns(T value, Join join) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < Tile::kLanesARow; mask *= 2) value = join(value, shuffle_xor(value, mask));
  return value;
}

}  // namespace kvreplay::cuda
