// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_MATRIX_TILES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_MATRIX_TILES_INL_HPP
#undef KVREPLAY_MATRIX_TILES_INL_HPP
#else
#define KVREPLAY_MATRIX_TILES_INL_HPP
#endif

#include "sim/simd/panel_gemm-inl.hpp"
#include "sim/tokens/matrix_operands.hpp"
#include "sim/tokens/tiles.hpp"

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A panel [depth][W] as right tiles of a matrix unit, float_to_bfloat() of each number, of what is not NaN.
inline HWY_NOINLINE void PackRight(const float* HWY_RESTRICT panel, Index depth, Bf16* HWY_RESTRICT tiles) {
  const hn::CappedTag<float, kTileRows> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  constexpr Index W = kPanelWidth<float>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto rounded = [&](Index row, Index column) HWY_ATTR {
    if (row >= depth) return hn::Zero(bits);
    const auto x = hn::BitCast(bits, hn::LoadU(d, panel + row * W + column));
    const auto even = hn::And(hn::ShiftRight<16>(x), hn::Set(bits, 1));
    return hn::Add(x, hn::Add(even, hn::Set(bits, 0x7fff)));
  };
  for (Index row = 0; row < div_up(depth, kTileDepth) * kTileDepth; row += 2)
    for (Index column = 0; column < W; column += N) {
      const Index tile = row / kTileDepth * kTilesAcross + column / kTileRows;
      const Index at = (row % kTileDepth / 2 * kTileRows + column % kTileRows) * 2;
      const auto both = hn::Or(hn::ShiftRight<16>(rounded(row, column)),
                               hn::And(rounded(row + 1, column), hn::Set(bits, 0xffff0000U)));
      HWY_ALIGN std::uint32_t pairs[kTileRows];
      hn::Store(both, bits, pairs);
      std::memcpy(tiles + tile * kTileNumbers + at, pairs, static_cast<std::size_t>(N) * sizeof(pairs[0]));
    }
}

/// Logits of a panel's rows and the tokens from `first` on, [tokens][W]; by a matrix unit `first` is a
/// multiple of kTileRows, and there is room for whole tiles.
template <class T>
HWY_INLINE void TileLogits(const TileInput<T>& in, Index panel, Index first, Index tokens, T* z) {
  if constexpr (sizeof(T) == 4)
    if (in.matrix != nullptr)
      return in.matrix->with_keys(first, tokens, in.q_tiles + panel * right_tiles(in.d) * kTileNumbers, z);
  PanelGemm<T>(tokens, in.k + first * in.d, in.d, 1, in.d, in.q_panels + panel * in.d * kPanelWidth<T>,
               nullptr, z);
}

/// The same for (v - centre) . (o - centre).
template <class T>
HWY_INLINE void TileValues(const TileInput<T>& in, const T* out_panels, Index panel, Index first,
                           Index tokens, T* vo) {
  if constexpr (sizeof(T) == 4)
    if (in.matrix != nullptr)
      return in.matrix->with_values(first, tokens, in.o_tiles + panel * right_tiles(in.d_v) * kTileNumbers,
                                    vo);
  PanelGemm<T>(tokens, in.v_centred + first * in.d_v, in.d_v, 1, in.d_v,
               out_panels + panel * in.d_v * kPanelWidth<T>, nullptr, vo);
}

/// sums [d_v][W] = sums scale + the tokens' values times their weights, [tokens][W]. By a matrix unit there
/// are `before` rows before them that belong to their first tile, and room for a whole last one.
template <class T>
HWY_INLINE void AddTileValues(const TileInput<T>& in, Index first, Index before, Index tokens, T* weights,
                              const T* scale, T* sums) {
  constexpr Index W = kPanelWidth<T>;
  if constexpr (sizeof(T) == 4)
    if (in.matrix != nullptr) {
      const hn::ScalableTag<T> d;
      const Index N = static_cast<Index>(hn::Lanes(d));
      constexpr Index kTilesAtOnce = 8;
      HWY_ALIGN Bf16 right[kMostTokensPassOne * W];
      HWY_ALIGN T added[kTilesAtOnce * kTileRows * W];
      std::fill_n(weights - before * W, before * W, T{0});
      PackRight(weights - before * W, before + tokens, right);
      for (Index tile = 0, tiles = div_up(in.d_v, kTileRows); tile < tiles; tile += kTilesAtOnce) {
        in.matrix->over_tokens(first - before, before + tokens, tile, std::min(kTilesAtOnce, tiles - tile),
                               right, added);
        const Index c = tile * kTileRows, n = std::min(kTilesAtOnce * kTileRows, in.d_v - c);
        for (Index at = 0; at < n * W; at += N) {
          T* sum = sums + c * W + at;
          const auto by = hn::LoadU(d, scale + at % W);
          hn::StoreU(hn::MulAdd(hn::LoadU(d, sum), by, hn::LoadU(d, added + at)), d, sum);
        }
      }
      return;
    }
  PanelGemm<T>(in.d_v, in.v_centred + first * in.d_v, 1, in.d_v, tokens, weights, scale, sums);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
