#include "sim/simd/matrix_unit.hpp"

#include "data/npy/half.hpp"
#include "sim/simd/amx.hpp"

#include <algorithm>
#include <cstddef>
#include <new>

namespace kvreplay {
namespace {

constexpr std::align_val_t kCacheLine{64};

/// x [rows][columns] by pieces of kRows x kColumns, whose numbers stand in a tile so many apart.
template <Index kRows, Index kColumns>
void pack(const float* x, Index rows, Index columns, Index row_step, Index column_step, Bf16* tiles) {
  for (Index row = 0; row < rows; row += kRows)
    for (Index column = 0; column < columns; column += kColumns, tiles += kTileNumbers) {
      const Index m = std::min(kRows, rows - row), n = std::min(kColumns, columns - column);
      if (m < kRows || n < kColumns) std::fill_n(tiles, kTileNumbers, Bf16{0});
      for (Index r = 0; r < m; ++r)
        for (Index c = 0; c < n; ++c)
          tiles[r * row_step + c * column_step] = float_to_bfloat(x[(row + r) * columns + column + c]);
    }
}

}  // namespace

void DeleteTiles::operator()(Bf16* tiles) const { ::operator delete(tiles, kCacheLine); }

Tiles new_tiles(Index tiles) {
  const auto bytes = static_cast<std::size_t>(std::max<Index>(tiles, 1) * kTileNumbers) * sizeof(Bf16);
  return Tiles(static_cast<Bf16*>(::operator new(bytes, kCacheLine)));
}

void pack_left(const float* x, Index rows, Index columns, Bf16* tiles) {
  pack<kTileRows, kTileDepth>(x, rows, columns, kTileDepth, 1, tiles);
}

void pack_left_transposed(const float* x, Index rows, Index columns, Bf16* tiles) {
  pack<kTileDepth, kTileRows>(x, rows, columns, 1, kTileDepth, tiles);
}

const MatrixUnit* matrix_unit() {
  static const MatrixUnit* const unit = amx_unit();
  return unit;
}

std::string why_no_matrix_unit() {
  return matrix_unit() != nullptr ? "" : "this processor has no matrix units (AMX) that a program may use";
}

}  // namespace kvreplay
