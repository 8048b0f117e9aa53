#include "sim/simd/bf16_dots.hpp"

#if defined(__x86_64__)

#include <cstring>
#include <immintrin.h>

namespace kvreplay {
namespace {

// Sums of so many rows and of a panel's two tiles at once: enough to hide a dot product's latency.
constexpr int kRowsAtOnce = 8;
static_assert(kTilesAcross == 2 && kTileRows % kRowsAtOnce == 0);

/// kRowsAtOnce rows of a left tile's row of tiles, from `left` on.
__attribute__((target("avx512f,avx512bf16"))) void row_product(const Bf16* left, Index depth_step,
                                                               Index depth_tiles, const Bf16* right,
                                                               float* c) {
  constexpr Index W = kPanelWidth<float>, kPairs = kTileDepth / 2;
  __m512 sum[kRowsAtOnce][kTilesAcross];
#pragma GCC unroll 8
  for (int m = 0; m < kRowsAtOnce; ++m) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
  for (Index k = 0; k < depth_tiles;
       ++k, left += depth_step * kTileNumbers, right += kTilesAcross * kTileNumbers)
    for (Index pair = 0; pair < kPairs; ++pair) {
      const Bf16* b = right + pair * 2 * kTileRows;
      const auto b0 = (__m512bh)_mm512_load_si512(b), b1 = (__m512bh)_mm512_load_si512(b + kTileNumbers);
#pragma GCC unroll 8
      for (int m = 0; m < kRowsAtOnce; ++m) {
        int both = 0;
        std::memcpy(&both, left + m * kTileDepth + 2 * pair, sizeof(both));
        const auto a = (__m512bh)_mm512_set1_epi32(both);
        sum[m][0] = _mm512_dpbf16_ps(sum[m][0], a, b0);
        sum[m][1] = _mm512_dpbf16_ps(sum[m][1], a, b1);
      }
    }
#pragma GCC unroll 8
  for (int m = 0; m < kRowsAtOnce; ++m) {
    _mm512_storeu_ps(c + m * W, sum[m][0]);
    _mm512_storeu_ps(c + m * W + kTileRows, sum[m][1]);
  }
}

void product(const LeftTiles& a, Index row_tiles, Index depth_tiles, const Bf16* b, float* c) {
  for (Index row = 0; row < row_tiles * kTileRows; row += kRowsAtOnce) {
    const Bf16* tile = a.tiles + row / kTileRows * a.row_step * kTileNumbers;
    row_product(tile + row % kTileRows * kTileDepth, a.depth_step, depth_tiles, b,
                c + row * kPanelWidth<float>);
  }
}

}  // namespace

const MatrixUnit* bf16_dots_unit() {
  static constexpr MatrixUnit kUnit{product};
  return __builtin_cpu_supports("avx512bf16") != 0 ? &kUnit : nullptr;
}

}  // namespace kvreplay

#else

namespace kvreplay {

const MatrixUnit* bf16_dots_unit() { return nullptr; }

}  // namespace kvreplay

#endif
