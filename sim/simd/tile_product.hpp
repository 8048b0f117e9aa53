#pragma once

#include "sim/simd/matrix_unit.hpp"

namespace kvreplay {

/// MatrixUnit::product() on eight registers that hold a tile each: 2 x 2 of sums, two tiles of A and two of
/// B. Registers have zero<t>(), load<t>(tile), multiply<sum, a, b>() and store<t>(float* first, row stride).
template <class Registers>
void tile_product(Registers& r, const LeftTiles& a, Index row_tiles, Index depth_tiles, const Bf16* b,
                  float* c) {
  static_assert(kTilesAcross == 2);
  constexpr Index W = kPanelWidth<float>;
  for (Index row = 0; row < row_tiles; row += 2) {
    const bool two = row + 1 < row_tiles;
    r.template zero<0>();
    r.template zero<1>();
    r.template zero<2>();
    r.template zero<3>();
    for (Index k = 0; k < depth_tiles; ++k) {
      const Bf16* left = a.tiles + (row * a.row_step + k * a.depth_step) * kTileNumbers;
      const Bf16* right = b + k * kTilesAcross * kTileNumbers;
      r.template load<4>(left);
      r.template load<6>(right);
      r.template load<7>(right + kTileNumbers);
      r.template multiply<0, 4, 6>();
      r.template multiply<1, 4, 7>();
      if (!two) continue;
      r.template load<5>(left + a.row_step * kTileNumbers);
      r.template multiply<2, 5, 6>();
      r.template multiply<3, 5, 7>();
    }
    float* sums = c + row * kTileRows * W;
    r.template store<0>(sums, W);
    r.template store<1>(sums + kTileRows, W);
    if (!two) continue;
    r.template store<2>(sums + kTileRows * W, W);
    r.template store<3>(sums + kTileRows * W + kTileRows, W);
  }
}

}  // namespace kvreplay
