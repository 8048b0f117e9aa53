#pragma once

#include "sim/cuda/warp_tile.hpp"

#include <cstdint>

// A warp's share of a matrix product on matrix units: TF32 products of 16 x 8 x 8 (PTX ISA, mma.m16n8k8),
// which devices from capability 8.0 on have.

namespace kvreplay::cuda {

/// float32 rounded to TF32's 10 explicit bits of significand, ties away from 0.
KVREPLAY_DEVICE float rounded_to_tf32(float x) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#else
  return x;
#endif
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
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a.at[0])), "r"(__float_as_uint(a.at[1])), "r"(__float_as_uint(a.at[2])),
        "r"(__float_as_uint(a.at[3])), "r"(__float_as_uint(b.at[0])), "r"(__float_as_uint(b.at[1])));
#else
  (void)c, (void)a, (void)b;
  __trap();  // the host chooses another tile there
#endif
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

/// A tile as WarpTile (warp_tile.hpp), from matrix units. Each number is taken as the sum of two of TF32, and
/// of the four products the three are formed that float32 would not round away: as good as float32's own, as
/// long as a call's depth is short: the units truncate what they add, and only the calls' sums are rounded.
template <int kColumns>
struct SplitTile : TileEntries<SplitTile<kColumns>, 2, kColumns / 4> {
  using Entries = TileEntries<SplitTile<kColumns>, 2, kColumns / 4>;
  using Entries::at;

  KVREPLAY_DEVICE static int row(int i) { return lane_id() / 4 + 8 * i; }
  KVREPLAY_DEVICE static int col(int j) { return j / 2 * 8 + lane_id() % 4 * 2 + j % 2; }

  /// `depth` is a multiple of 8.
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

}  // namespace kvreplay::cuda
