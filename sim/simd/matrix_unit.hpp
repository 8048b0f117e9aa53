#pragma once

#include "sim/simd/panel.hpp"

#include <cstdint>
#include <memory>
#include <string>

// Products of bfloat16 with float32 sums by a processor's matrix units (Intel's AMX) or, where it has none,
// its vectors (AVX-512 BF16), and how what they multiply lies in memory: in tiles of 1 KiB, each read by one
// instruction of a matrix unit.

namespace kvreplay {

/// As data/npy/half.hpp has it.
using Bf16 = std::uint16_t;

/// A left tile is 16 rows of 32 numbers, [16][32]; a right tile 32 rows of 16 columns, two rows side by side,
/// [16][16][2]. Rows, columns and depth are padded with zeros.
inline constexpr Index kTileRows = 16, kTileDepth = 32, kTileNumbers = kTileRows * kTileDepth;
inline constexpr Index kTilesAcross = kPanelWidth<float> / kTileRows;  ///< of a panel
/// Right tiles of a panel.
constexpr Index right_tiles(Index depth) { return div_up(depth, kTileDepth) * kTilesAcross; }

struct DeleteTiles {
  void operator()(Bf16* tiles) const;
};
/// On cache lines, as they come from the system.
using Tiles = std::unique_ptr<Bf16[], DeleteTiles>;
Tiles new_tiles(Index tiles);

/// Left tiles as a product takes them: where one row's, and one depth's, next tile lies, in tiles.
struct LeftTiles {
  const Bf16* tiles;
  Index row_step, depth_step;
};

struct MatrixUnit {
  /// C [16 row_tiles][W] = A B, B a panel's right tiles [depth_tiles][kTilesAcross]: each sum tile after tile
  /// of the depth, within a tile in the instruction's own order.
  void (*product)(const LeftTiles& a, Index row_tiles, Index depth_tiles, const Bf16* b, float* c);
};

/// This processor's; null where it has none, or the system does not let a program use it.
const MatrixUnit* matrix_unit();
/// Why there is none, as a clause; empty where there is one.
std::string why_no_matrix_unit();

}  // namespace kvreplay
