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

/// float_to_bfloat() of every lane, in the upper half of it.
template <class V>
HWY_INLINE auto RoundToBf16(V x) {
  const hn::RebindToUnsigned<hn::DFromV<V>> bits;
  const auto exact = hn::BitCast(bits, x);
  const auto even = hn::And(hn::ShiftRight<16>(exact), hn::Set(bits, 1));
  const auto rounded = hn::Add(exact, hn::Add(even, hn::Set(bits, 0x7fff)));
  return hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(x)), hn::Or(exact, hn::Set(bits, 0x400000)), rounded);
}

/// Two rows as a product takes them: lane n has row r's number in its lower half, row r + 1's in the upper.
template <class V>
HWY_INLINE auto RowPair(V row, V next) {
  const hn::RebindToUnsigned<hn::DFromV<V>> bits;
  return hn::Or(hn::ShiftRight<16>(RoundToBf16(row)), hn::And(RoundToBf16(next), hn::Set(bits, 0xffff0000U)));
}

/// A panel [depth][W] as right tiles of a matrix unit.
inline HWY_NOINLINE void PackRight(const float* HWY_RESTRICT panel, Index depth, Bf16* HWY_RESTRICT tiles) {
  const hn::CappedTag<float, kTileRows> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  constexpr Index W = kPanelWidth<float>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto numbers = [&](Index row, Index column) HWY_ATTR {
    return row < depth ? hn::LoadU(d, panel + row * W + column) : hn::Zero(d);
  };
  for (Index row = 0; row < div_up(depth, kTileDepth) * kTileDepth; row += 2)
    for (Index column = 0; column < W; column += N) {
      const Index tile = row / kTileDepth * kTilesAcross + column / kTileRows;
      const Index at = (row % kTileDepth / 2 * kTileRows + column % kTileRows) * 2;
      HWY_ALIGN std::uint32_t pairs[kTileRows];
      hn::Store(RowPair(numbers(row, column), numbers(row + 1, column)), bits, pairs);
      std::memcpy(tiles + tile * kTileNumbers + at, pairs, static_cast<std::size_t>(N) * sizeof(pairs[0]));
    }
}

/// Hands `tile(piece, stride)` the pieces [kRows][kColumns] of x [rows][columns], zeros beyond its edges.
template <Index kRows, Index kColumns, class Tile>
HWY_INLINE void ForEachPiece(const float* x, Index rows, Index columns, const Tile& tile) {
  HWY_ALIGN float edge[kRows * kColumns];
  for (Index row = 0; row < rows; row += kRows)
    for (Index column = 0; column < columns; column += kColumns) {
      const float* piece = x + row * columns + column;
      const Index m = std::min(kRows, rows - row), n = std::min(kColumns, columns - column);
      if (m == kRows && n == kColumns) {
        tile(piece, columns);
        continue;
      }
      std::fill_n(edge, kRows * kColumns, 0.0F);
      for (Index r = 0; r < m; ++r) std::copy_n(piece + r * columns, n, edge + r * kColumns);
      tile(edge, kColumns);
    }
}

inline HWY_NOINLINE void PackLeft(const float* HWY_RESTRICT x, Index rows, Index columns,
                                  Bf16* HWY_RESTRICT tiles) {
  const hn::CappedTag<float, kTileDepth> d;
  const hn::Rebind<Bf16, decltype(d)> narrow;
  const Index N = static_cast<Index>(hn::Lanes(d));
  ForEachPiece<kTileRows, kTileDepth>(x, rows, columns, [&](const float* piece, Index stride) HWY_ATTR {
    for (Index r = 0; r < kTileRows; ++r)
      for (Index c = 0; c < kTileDepth; c += N, tiles += N) {
        const auto rounded = RoundToBf16(hn::LoadU(d, piece + r * stride + c));
        hn::StoreU(hn::TruncateTo(narrow, hn::ShiftRight<16>(rounded)), narrow, tiles);
      }
  });
}

inline HWY_NOINLINE void PackLeftTransposed(const float* HWY_RESTRICT x, Index rows, Index columns,
                                            Bf16* HWY_RESTRICT tiles) {
  const hn::CappedTag<float, kTileRows> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  constexpr Index kPairs = kTileDepth / 2;
  const Index N = static_cast<Index>(hn::Lanes(d));
  ForEachPiece<kTileDepth, kTileRows>(x, rows, columns, [&](const float* piece, Index stride) HWY_ATTR {
    HWY_ALIGN std::uint32_t pairs[kPairs][kTileRows], across[kTileRows][kPairs];
    for (Index pair = 0; pair < kPairs; ++pair)
      for (Index c = 0; c < kTileRows; c += N) {
        const float* row = piece + 2 * pair * stride + c;
        hn::Store(RowPair(hn::LoadU(d, row), hn::LoadU(d, row + stride)), bits, pairs[pair] + c);
      }
    for (Index c = 0; c < kTileRows; ++c)
      for (Index pair = 0; pair < kPairs; ++pair) across[c][pair] = pairs[pair][c];
    std::memcpy(tiles, across, sizeof(across));
    tiles += kTileNumbers;
  });
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
