#pragma once

#include "sim/cuda/kernel.hpp"

// A warp's share of a matrix product, in plain float32 fused multiply-adds: 16 rows by kColumns columns, each
// lane 4 rows by kColumns / 8 columns.

namespace kvreplay::cuda {

/// A lane's entries of a tile of 16 rows. Tile::add(a, lda, b, b_k, b_n, depth) is += A B, where entry (k, n)
/// of B is b[k * b_k + n * b_n].
template <class Tile, int kLaneRows, int kLaneCols>
struct TileEntries {
  static constexpr int kRows = kLaneRows, kCols = kLaneCols, kWarpRows = 16;
  static constexpr int kLanesARow = 32 * kRows / kWarpRows;
  float at[kRows][kCols];

  KVREPLAY_DEVICE void fill(float value) {
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      KVREPLAY_UNROLL
      for (int j = 0; j < kCols; ++j) at[i][j] = value;
    }
  }

  /// += A B^T: A [16][depth] with rows `lda` apart, B [columns][depth] with rows `ldb` apart.
  KVREPLAY_DEVICE void add_product_with_transpose(const float* a, int lda, const float* b, int ldb,
                                                  int depth) {
    static_cast<Tile*>(this)->add(a, lda, b, 1, ldb, depth);
  }
  /// += A B: A [16][depth], B [depth][columns].
  KVREPLAY_DEVICE void add_product(const float* a, int lda, const float* b, int ldb, int depth) {
    static_cast<Tile*>(this)->add(a, lda, b, ldb, 1, depth);
  }
};

template <int kColumns>
struct WarpTile : TileEntries<WarpTile<kColumns>, 4, kColumns / 8> {
  using Entries = TileEntries<WarpTile<kColumns>, 4, kColumns / 8>;
  using Entries::at, Entries::kCols, Entries::kRows;

  KVREPLAY_DEVICE static int row(int i) { return lane_id() / 8 * kRows + i; }
  KVREPLAY_DEVICE static int col(int j) { return lane_id() % 8 + 8 * j; }

  KVREPLAY_DEVICE void add(const float* a, int lda, const float* b, int b_k, int b_n, int depth) {
    for (int k = 0; k < depth; ++k) {
      float left[kRows];
      KVREPLAY_UNROLL
      for (int i = 0; i < kRows; ++i) left[i] = a[row(i) * lda + k];
      KVREPLAY_UNROLL
      for (int j = 0; j < kCols; ++j) {
        const float right = b[k * b_k + col(j) * b_n];
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
