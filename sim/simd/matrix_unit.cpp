#include "sim/simd/matrix_unit.hpp"

#include "sim/simd/amx.hpp"

#include <algorithm>
#include <cstddef>
#include <new>

namespace kvreplay {

namespace {

constexpr std::align_val_t kCacheLine{64};

}  // namespace

void DeleteTiles::operator()(Bf16* tiles) const { ::operator delete(tiles, kCacheLine); }

Tiles new_tiles(Index tiles) {
  const auto bytes = static_cast<std::size_t>(std::max<Index>(tiles, 1) * kTileSize) * sizeof(Bf16);
  return Tiles(static_cast<Bf16*>(::operator new(bytes, kCacheLine)));
}

void pack_left(const float* x, Index rows, Index columns, Bf16* tiles) {
  for (Index row = 0; row < rows; row += kTileRows)
    for (Index column = 0; column < columns; column += kTileDepth, tiles += kTileSize) {
      const Index n = std::min(kTileDepth, columns - column), m = std::min(kTileRows, rows - row);
      if (m < kTileRows || n < kTileDepth) std::fill_n(tiles, kTileSize, Bf16{0});
      for (Index r = 0; r < m; ++r)
        for (Index c = 0; c < n; ++c)
          tiles[r * kTileDepth + c] = to_bf16(x[(row + r) * columns + column + c]);
    }
}

void pack_left_transposed(const float* x, Index rows, Index columns, Bf16* tiles) {
  for (Index row = 0; row < rows; row += kTileDepth)
    for (Index column = 0; column < columns; column += kTileRows, tiles += kTileSize) {
      const Index n = std::min(kTileRows, columns - column), m = std::min(kTileDepth, rows - row);
      if (m < kTileDepth || n < kTileRows) std::fill_n(tiles, kTileSize, Bf16{0});
      for (Index r = 0; r < m; ++r)
        for (Index c = 0; c < n; ++c)
          tiles[c * kTileDepth + r] = to_bf16(x[(row + r) * columns + column + c]);
    }
}

const MatrixUnit* matrix_unit() {
  static const MatrixUnit* const unit = amx_unit();
  return unit;
}

std::string why_no_matrix_unit() {
  return matrix_unit() != nullptr ? "" : "this processor has no matrix units (AMX) that a program may use";
}

}  // namespace kvreplay
