#pragma once

#include "sim/cuda/kernel.hpp"

namespace kvreplay::cuda {

/// A block's 64 x 64 of X^T Y, 128 threads: 32 rows of X and Y at a time lie in shared memory, products and
/// their first sums in T, sums of those in float64. Each of the 4 warps has 32 x 32 of it, each lane 8 x 4.
template <class T>
struct ProductTile {
  static constexpr int kThreads = 128, kSide = 64, kStep = 32;
  static constexpr int kRows = 8, kCols = 4;  // of a lane

  /// Numbers that a lane reads from shared memory at once.
  struct alignas(16) Pack {
    static constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
    T at[kWidth];
  };
  /// kStep rows of kSide numbers.
  struct Panel {
    Pack packs[kStep][kSide / Pack::kWidth];
    KVREPLAY_DEVICE void put(int row, int column, float number) {
      packs[row][column / Pack::kWidth].at[column % Pack::kWidth] = static_cast<T>(number);
    }
  };
  struct Shared {
    Panel left, right;
  };

  /// All threads fill a panel with kStep channels of kSide rows: read(row, channel).
  template <class Read>
  KVREPLAY_DEVICE static void load_channels(Panel& panel, const Read& read) {
    // Eight rows by four channels a warp: few sectors to read, few lanes that store to one bank.
    for (int at = thread_id(); at < kStep * kSide; at += kThreads) {
      const int r = at / 256 * 8 + at / 4 % 8, c = at / 32 % 8 * 4 + at % 4;
      panel.put(c, r, read(r, c));
    }
  }

  /// Joins what every lane has of its rows: the block's own, each with a lane that is told take(row, joined).
  template <class Join, class Take>
  KVREPLAY_DEVICE static void join_columns(double (&own)[kRows], const Join& join, const Take& take) {
    // Eight lanes have a row's columns, and so has another warp.
    auto* const others = reinterpret_cast<double*>(shared_memory());  // [kSide]
    sync_block();
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      for (int mask = 1; mask < 8; mask *= 2) own[i] = join(own[i], shuffle_xor(own[i], mask));
      if (warp_id() % 2 == 1 && lane_id() % 8 == 0) others[row(i)] = own[i];
    }
    sync_block();
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i)
      if (warp_id() % 2 == 0 && lane_id() % 8 == 0) take(row(i), join(own[i], others[row(i)]));
  }

  T sum[kRows][kCols] = {};
  double total[kRows][kCols] = {};

  /// Where the lane's entry (i, j) stands in the tile.
  KVREPLAY_DEVICE static int row(int i) {
    return left_pack(i / Pack::kWidth) * Pack::kWidth + i % Pack::kWidth;
  }
  KVREPLAY_DEVICE static int col(int j) {
    return right_pack(j / Pack::kWidth) * Pack::kWidth + j % Pack::kWidth;
  }

  KVREPLAY_DEVICE void add(const Panel& left, const Panel& right) {
    constexpr int kWidth = Pack::kWidth;
    for (int r = 0; r < kStep; ++r) {
      Pack a[kRows / kWidth], b[kCols / kWidth];
      KVREPLAY_UNROLL
      for (int n = 0; n < kRows / kWidth; ++n) a[n] = left.packs[r][left_pack(n)];
      KVREPLAY_UNROLL
      for (int n = 0; n < kCols / kWidth; ++n) b[n] = right.packs[r][right_pack(n)];
      KVREPLAY_UNROLL
      for (int i = 0; i < kRows; ++i) {
        KVREPLAY_UNROLL
        for (int j = 0; j < kCols; ++j)
          sum[i][j] = multiplied_added(a[i / kWidth].at[i % kWidth], b[j / kWidth].at[j % kWidth], sum[i][j]);
      }
    }
  }

  /// total += sum; sum := 0.
  KVREPLAY_DEVICE void move_to_total() {
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      KVREPLAY_UNROLL
      for (int j = 0; j < kCols; ++j) {
        total[i][j] += static_cast<double>(sum[i][j]);
        sum[i][j] = 0;
      }
    }
  }

 private:
  // Lanes side by side read packs side by side.
  KVREPLAY_DEVICE static int left_pack(int n) {
    return warp_id() / 2 * (32 / Pack::kWidth) + n * 4 + lane_id() / 8;
  }
  KVREPLAY_DEVICE static int right_pack(int n) {
    return warp_id() % 2 * (32 / Pack::kWidth) + n * 8 + lane_id() % 8;
  }

  KVREPLAY_DEVICE static float multiplied_added(float a, float b, float c) { return fused(a, b, c); }
  // The product of numbers that were float32 is exact: rounded once, fused or not.
  KVREPLAY_DEVICE static double multiplied_added(double a, double b, double c) { return a * b + c; }
};

}  // namespace kvreplay::cuda
