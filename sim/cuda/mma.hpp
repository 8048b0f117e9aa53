#pragma once

#include "sim/cuda/kernel.hpp"

#include <cstdint>

// A warp's share of a matrix product on matrix units: TF32 products of 16 x 8 x 8 (PTX ISA, mma.m16n8k8).

namespace kvreplay::cuda {

/// float32 rounded to TF32's 10 explicit bits of significand, ties away from 0.
KVREPLAY_DEVICE float rounded_to_tf32(float x) {
#if defined(__CUDACC__)
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#else
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7f800000U) == 0x7f800000U ? x : std::bit_cast<float>((bits + 0x1000U) & ~0x1fffU);
#endif
}

/// One lane's part of A [16][8], B [8][8] and C [16][8]; lane = 4 g + t.
struct MmaA {
  float at[4];  ///< (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
};
struct MmaB {
  float at[2];  ///< (t, g), (t + 4, g)
};

/// C += A B: C is (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). Entries of A and B are TF32.
KVREPLAY_DEVICE void multiply_add(float* c, const MmaA& a, const MmaB& b) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a.at[0])), "r"(__float_as_uint(a.at[1])), "r"(__float_as_uint(a.at[2])),
        "r"(__float_as_uint(a.at[3])), "r"(__float_as_uint(b.at[0])), "r"(__float_as_uint(b.at[1])));
#else
  struct Operands {
    MmaA a;
    MmaB b;
  } operands{a, b};
  emulation::warp_together("mma.m16n8k8", {&operands, c}, [](const emulation::Lanes& lanes) {
    float left[16][8], right[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& given = *static_cast<const Operands*>(lanes[lane].given);
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) left[g + 8 * (i % 2)][t + 4 * (i / 2)] = rounded_to_tf32(given.a.at[i]);
      for (int i = 0; i < 2; ++i) right[t + 4 * i][g] = rounded_to_tf32(given.b.at[i]);
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto* out = static_cast<float*>(lanes[lane].taken);
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        double sum = static_cast<double>(out[i]);
        for (int k = 0; k < 8; ++k)
          sum += static_cast<double>(left[g + 8 * (i / 2)][k]) * static_cast<double>(right[k][2 * t + i % 2]);
        out[i] = emulation::truncated(sum);
      }
    }
  });
#endif
}

/// A warp's tile of 16 rows by kColumns columns, each lane 2 rows by kColumns / 4 columns. Each number is
/// taken as the sum of two of TF32, and of the four products the three are formed that float32 would not
/// round away: as good as float32's own, as long as a call's depth is short: the units truncate what they
/// add, and only the calls' sums are rounded.
template <int kColumns>
struct SplitTile {
  static constexpr int kRows = 2, kCols = kColumns / 4, kLanesARow = 4;
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
    add(a, lda, b, 1, ldb, depth);
  }
  /// += A B: A [16][depth], B [depth][columns].
  KVREPLAY_DEVICE void add_product(const float* a, int lda, const float* b, int ldb, int depth) {
    add(a, lda, b, ldb, 1, depth);
  }

  KVREPLAY_DEVICE static int row(int i) { return lane_id() / 4 + 8 * i; }
  KVREPLAY_DEVICE static int col(int j) { return j / 2 * 8 + lane_id() % 4 * 2 + j % 2; }

  /// += A B, where entry (k, n) of B is b[k * b_k + n * b_n]; `depth` is a multiple of 8.
  KVREPLAY_DEVICE void add(const float* a, int lda, const float* b, int b_k, int b_n, int depth) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    float sum[kColumns / 8][4] = {};
    for (int k = 0; k < depth; k += 8) {
      MmaA high, low;
      KVREPLAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float x = a[(g + 8 * (i % 2)) * lda + k + t + 4 * (i / 2)];
        high.at[i] = rounded_to_tf32(x);
        low.at[i] = rounded_to_tf32(x - high.at[i]);
      }
      KVREPLAY_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        MmaB b_high, b_low;
        KVREPLAY_UNROLL
        for (int i = 0; i < 2; ++i) {
          const float x = b[(k + t + 4 * i) * b_k + (8 * n + g) * b_n];
          b_high.at[i] = rounded_to_tf32(x);
          b_low.at[i] = rounded_to_tf32(x - b_high.at[i]);
        }
        multiply_add(sum[n], low, b_high);
        multiply_add(sum[n], high, b_low);
        multiply_add(sum[n], high, b_high);
      }
    }
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      KVREPLAY_UNROLL
      for (int i = 0; i < 4; ++i) at[i / 2][2 * n + i % 2] += sum[n][i];
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

/// A block's part of the two matrices in shared memory.
template <int kRows, int kColumns>
struct BlockChunks {
  static constexpr int kDepth = 32;           // channels at a time
  static constexpr int kStride = kDepth + 4;  // keeps rows in different banks
  float a[kRows * kStride];
  float b[kColumns * kStride];
};

template <int kThreads, int kColumns>
struct BlockProduct {
  using Tile = SplitTile<kColumns>;
  static constexpr int kRows = kThreads / 32 * 16;
  using Chunks = BlockChunks<kRows, kColumns>;
  static constexpr int kDepth = Chunks::kDepth, kStride = Chunks::kStride;

  /// tile += A B^T: rows first_a .. of `a` and first_b .. of `b`, both [..][width]; 0 stands for rows from
  /// `end` on. The whole block calls.
  KVREPLAY_DEVICE static void add(const float* a, int first_a, int end_a, const float* b, int first_b,
                                  int end_b, int width, Chunks& shared, Tile& tile) {
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
