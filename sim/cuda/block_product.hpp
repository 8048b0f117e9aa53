#pragma once

#include "sim/cuda/warp_tile.hpp"

// A block's share of a matrix product: 16 rows of A for each warp against kColumns rows of B, some channels
// of both at a time in shared memory.

namespace kvreplay::cuda {

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
