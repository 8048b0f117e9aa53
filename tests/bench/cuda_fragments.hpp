#pragma once

#include "sim/cuda/chunks.hpp"
#include "sim/cuda/mma.hpp"
#include "tests/bench/cuda_rates.hpp"

#include <cstddef>
#include <cstdint>

// A warp's share of a tile on matrix units: 64 x 64 in products of 16 x 8 with 32 bytes of each row at once.
// Fragments as in the PTX ISA; those of float16 (16 channels) and of TF32 (8) are the same bytes of a row.

namespace kvreplay::bench {

using Word = std::uint32_t;

inline constexpr int kWarpSide = 64, kRowBlocks = kWarpSide / 16, kTokenBlocks = kWarpSide / 8;
inline constexpr int kStepBytes = 32, kSteps = kChunkBytes / kStepBytes;
inline constexpr int kStrideBytes = kChunkBytes + 16;  // rows begin in different banks
inline constexpr std::size_t kMatrixShared = static_cast<std::size_t>(kTileRows + kTileTokens) * kStrideBytes;

struct Fragments {
  Word a[kRowBlocks][4];
  Word b[kTokenBlocks][2];
};

KVREPLAY_DEVICE void load(const unsigned char* a, const unsigned char* b, int byte, Fragments& f) {
  const auto rows = [&](const unsigned char* from, int row) {
    return reinterpret_cast<const cuda::HalfBits*>(from + row * kStrideBytes + byte);
  };
  constexpr int kStride = kStrideBytes / static_cast<int>(sizeof(cuda::HalfBits));
  KVREPLAY_UNROLL
  for (int i = 0; i < kRowBlocks; ++i) {
    const cuda::HalfA own = cuda::load_a(rows(a, 16 * i), kStride);
    KVREPLAY_UNROLL
    for (int m = 0; m < 4; ++m) f.a[i][m] = own.at[m];
  }
  KVREPLAY_UNROLL
  for (int j = 0; j < kTokenBlocks; j += 2) {
    const cuda::HalfB own = cuda::load_b_of_transpose(rows(b, 8 * j), kStride);
    KVREPLAY_UNROLL
    for (int m = 0; m < 4; ++m) f.b[j + m / 2][m % 2] = own.at[m];
  }
}

/// c [16][8] += a [16][kDepth] b [8][kDepth]^T of a warp.
struct Half {
  static constexpr int kDepth = 16;
  KVREPLAY_DEVICE static void multiply_add(float* c, const Word* a, const Word* b) {
    cuda::multiply_add(c, cuda::HalfA{{a[0], a[1], a[2], a[3]}}, b[0], b[1]);
  }
};
/// From capability 8.0 on; cuda_floor.cpp leaves it out before.
struct Tf32 {
  static constexpr int kDepth = 8;
  KVREPLAY_DEVICE static void multiply_add(float* c, const Word* a, const Word* b) {
    using cuda::as_float;
    cuda::multiply_add(c, cuda::MmaA{{as_float(a[0]), as_float(a[1]), as_float(a[2]), as_float(a[3])}},
                       cuda::MmaB{{as_float(b[0]), as_float(b[1])}});
  }
};

}  // namespace kvreplay::bench
