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

/// Joins the values of all lanes that share the caller's rows of a tile, each of which gets the whole:
/// join(join(a, b), ...) in a fixed order.
template <class Tile, class T, class Join>
KVREPLAY_DEVICE T over_columns(T value, Join join) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < Tile::kLanesARow; mask *= 2) value = join(value, shuffle_xor(value, mask));
  return value;
}

// A block's share of a matrix product: 16 rows of A for each warp against kColumns rows of B, some channels
// of both at a time in shared memory.

/// What a block keeps in shared memory of the two matrices.
template <int kRows, int kColumns>
struct BlockChunks {
  static constexpr int kDepth = 32;           // channels at a time
  static constexpr int kStride = kDepth + 4;  // keeps rows in different banks
  float a[kRows * kStride];
  float b[kColumns * kStride];
};

/// Tile: WarpTile or another of its kind.
template <template <int> class Tile, int kThreads, int kColumns>
struct BlockProduct {
  static constexpr int kRows = kThreads / 32 * 16;
  using Chunks = BlockChunks<kRows, kColumns>;
  static constexpr int kDepth = Chunks::kDepth, kStride = Chunks::kStride;

  /// tile += A B^T: rows first_a .. of `a` and first_b .. of `b`, both [..][width]; 0 stands for rows from
  /// `end` on. The whole block calls.
  KVREPLAY_DEVICE static void add(const float* a, int first_a, int end_a, const float* b, int first_b,
                                  int end_b, int width, Chunks& shared, Tile<kColumns>& tile) {
    for (int channel = 0; channel < width; channel += kDepth) {
      sync_block();
      load(a, first_a, end_a, width, channel, kRows, shared.a);
      load(b, first_b, end_b, width, channel, kColumns, shared.b);
      sync_block();
      if (first_a + warp_id() * 16 >= end_a) continue;
      const float* own = shared.a + warp_id() * 16 * kStride;
      if (channel + kDepth <= width)
        tile.add_product_with_transpose(own, kStride, shared.b, kStride, kDepth);
      else
        tile.add_product_with_transpose(own, kStride, shared.b, kStride, (width - channel + 7) / 8 * 8);
    }
  }

 private:
  KVREPLAY_DEVICE static void load(const float* matrix, int first_row, int end_row, int width, int channel,
                                   int rows, float* shared) {
    for (int at = thread_id(); at < rows * kDepth; at += kThreads) {
      const int r = at / kDepth, c = at % kDepth;
      const int row = first_row + r, column = channel + c;
      const bool inside = row < end_row && column < width;
      shared[r * kStride + c] = inside ? matrix[static_cast<std::ptrdiff_t>(row) * width + column] : 0.0F;
    }
  }
};

}  // namespace kvreplay::cuda
