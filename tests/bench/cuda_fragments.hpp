#pragma once

#include "sim/cuda/kernel.hpp"
#include "tests/bench/cuda_rates.hpp"

#include <cstddef>
#include <cstdint>

#if !defined(__CUDACC__)
#include <cmath>
#include <cstring>
#endif

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

#if defined(__CUDACC__)
/// Four matrices of 8 rows x 16 bytes; the lane names the row 8 i + r of matrix i by lane = 8 i + r.
KVREPLAY_DEVICE void load_matrices(const unsigned char* row, Word& m0, Word& m1, Word& m2, Word& m3) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
               : "r"(address)
               : "memory");
}
KVREPLAY_DEVICE void load(const unsigned char* a, const unsigned char* b, int byte, Fragments& f) {
  const int row = cuda::lane_id() % 8, matrix = cuda::lane_id() / 8;
  KVREPLAY_UNROLL
  for (int i = 0; i < kRowBlocks; ++i)
    load_matrices(a + (16 * i + row + 8 * (matrix % 2)) * kStrideBytes + byte + 16 * (matrix / 2), f.a[i][0],
                  f.a[i][1], f.a[i][2], f.a[i][3]);
  KVREPLAY_UNROLL
  for (int j = 0; j < kTokenBlocks; j += 2)
    load_matrices(b + (8 * j + row + 8 * (matrix / 2)) * kStrideBytes + byte + 16 * (matrix % 2), f.b[j][0],
                  f.b[j][1], f.b[j + 1][0], f.b[j + 1][1]);
}
#else
inline Word word_at(const unsigned char* at) {
  Word word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}
inline void load(const unsigned char* a, const unsigned char* b, int byte, Fragments& f) {
  const int g = cuda::lane_id() / 4, t = cuda::lane_id() % 4;
  for (int i = 0; i < kRowBlocks; ++i)
    for (int m = 0; m < 4; ++m)
      f.a[i][m] = word_at(a + (16 * i + g + 8 * (m % 2)) * kStrideBytes + byte + 16 * (m / 2) + 4 * t);
  for (int j = 0; j < kTokenBlocks; ++j)
    for (int m = 0; m < 2; ++m) f.b[j][m] = word_at(b + (8 * j + g) * kStrideBytes + byte + 16 * m + 4 * t);
}

/// Number i of a row's `per_word` in each word.
inline float number_in(Word word, int per_word, int i) {
  if (per_word == 1) {
    float x = 0;
    std::memcpy(&x, &word, sizeof(x));
    return x;
  }
  const Word bits = word >> (16 * i) & 0xffffU;
  const int exponent = static_cast<int>(bits >> 10 & 31U), fraction = static_cast<int>(bits & 1023U);
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                   : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (bits & 0x8000U) != 0 ? -size : size;
}
/// c += a b^T of a warp, the rows of a and b of 8 words.
inline void emulated_product(int per_word, float* c, const Word* a, const Word* b) {
  struct Operands {
    int per_word;
    Word a[4], b[2];
  } operands{per_word, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  cuda::emulation::warp_together("rate product", {&operands, c}, [](const cuda::emulation::Lanes& lanes) {
    Word left[16][8], right[8][8];
    int per = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const auto& given = *static_cast<const Operands*>(lanes[static_cast<std::size_t>(lane)].given);
      const int g = lane / 4, t = lane % 4;
      per = given.per_word;
      for (int i = 0; i < 4; ++i) left[g + 8 * (i % 2)][t + 4 * (i / 2)] = given.a[i];
      for (int i = 0; i < 2; ++i) right[g][t + 4 * i] = given.b[i];
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto* out = static_cast<float*>(lanes[static_cast<std::size_t>(lane)].taken);
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8 * per; ++k)
          out[i] += number_in(left[lane / 4 + 8 * (i / 2)][k / per], per, k % per) *
                    number_in(right[lane % 4 * 2 + i % 2][k / per], per, k % per);
    }
  });
}
#endif

/// c [16][8] += a [16][kDepth] b [8][kDepth]^T of a warp.
struct Half {
  static constexpr int kDepth = 16;
  KVREPLAY_DEVICE static void multiply_add(float* c, const Word* a, const Word* b) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    KVREPLAY_UNROLL
    for (int i = 0; i < 2; ++i)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
          "%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
#else
    emulated_product(2, c, a, b);
#endif
  }
};
struct Tf32 {
  static constexpr int kDepth = 8;
  KVREPLAY_DEVICE static void multiply_add(float* c, const Word* a, const Word* b) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)c, (void)a, (void)b;
    __trap();  // cuda_floor.cpp leaves it out there
#endif
#else
    emulated_product(1, c, a, b);
#endif
  }
};

}  // namespace kvreplay::bench
