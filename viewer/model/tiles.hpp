#pragma once

#include "viewer/model/camera.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

// A matrix as a pyramid of tiles. A texel of level n stands for 2^n x 2^n cells and holds the one of largest
// |value|, so that an outlier is seen however far one zooms out. Tiles are made on demand; a matrix is never
// there as a whole.

namespace kvreplay::viewer {

inline constexpr int kTileBits = 8;
/// Texels on each side of a tile.
inline constexpr Index kTileSize = Index{1} << kTileBits;

/// Texels [row, row + 1) * kTileSize x [column, column + 1) * kTileSize of a level.
struct TileKey {
  int level = 0;
  Index row = 0, column = 0;
  auto operator<=>(const TileKey&) const = default;
  TileKey parent() const { return {level + 1, row / 2, column / 2}; }
};

/// Rank of a value among those that a texel could show: by |value|, the positive one first among equals, NaN
/// last (0). The rank is an integer, so that comparisons need no branches; value_of_rank() is the inverse.
inline std::uint32_t pool_rank(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU, rank = (magnitude << 1U | (~bits >> 31U)) + 1;
  return magnitude > 0x7F800000U ? 0 : rank;
}
inline float value_of_rank(std::uint32_t rank) {
  // 0 - 1 becomes a NaN by itself.
  return std::bit_cast<float>((rank - 1) >> 1U | (~(rank - 1) << 31U));
}

/// The one of two cells that a texel shows: the larger |value|, the positive one among equals. NaN gives way.
/// The order of the cells does not matter, so a texel is the same by whatever steps it was made.
inline float pooled(float first, float second) {
  return value_of_rank(std::max(pool_rank(first), pool_rank(second)));
}

/// Statistics of the cells in a part of a matrix.
struct TileStats {
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
  float least_positive = std::numeric_limits<float>::infinity();
  std::int64_t cells = 0;   ///< NaN and infinities among them
  std::int64_t finite = 0;  ///< neither NaN nor infinite: only these count above

  void add(const float* values, Index count);
  void merge(const TileStats& other);
  float largest_magnitude() const { return finite > 0 ? std::max(std::abs(min), std::abs(max)) : 0.0F; }
};

/// One tile's texels. At the matrix's right and lower edge a tile has fewer.
struct Tile {
  Index rows = 0, columns = 0;
  std::vector<float> values;  ///< [rows, columns]; NaN: no cell has a value (hidden by the mask)
  TileStats stats;            ///< of the cells below the texels
};
std::size_t bytes_of(const Tile& tile);

/// Texels of a level along an axis: ceil(cells / 2^level).
Index texels(Index cells, int level);
/// Texels that the tile has.
MatrixSize tile_extent(MatrixSize size, const TileKey& key);
/// The highest level that is drawn: the lowest at which the matrix has no more than kTopTexels a side, and is
/// thus one tile. A panel with fewer pixels a side may skip texels.
inline constexpr Index kTopTexels = 64;
int top_level(MatrixSize size);

/// The level at which both axes are drawn: ceil(log2(cells per pixel)), so that no texel is skipped; the
/// larger of both axes', between 0 and top_level().
int drawn_level(const Camera& camera, MatrixSize size);

/// A tile from cells that are given row by row, in any order; rows that are not given are taken for NaN.
class TileBuilder {
 public:
  TileBuilder(MatrixSize size, const TileKey& key);
  Index first_row() const;  ///< cells: the tile covers [first_row(), end_row()) x ..
  Index end_row() const;
  Index first_column() const;
  Index end_column() const;
  /// The cells [first_column(), end_column()) of the matrix's row `row`.
  void add_row(Index row, const float* cells);
  Tile finish();

 private:
  MatrixSize size_;
  TileKey key_;
  Tile tile_;
};

/// A tile of a matrix whose cells value(row, column) gives.
template <class Value>
Tile tile_of_values(MatrixSize size, const TileKey& key, const Value& value) {
  TileBuilder builder(size, key);
  std::vector<float> cells;
  for (Index row = builder.first_row(); row < builder.end_row(); ++row) {
    cells.clear();
    for (Index column = builder.first_column(); column < builder.end_column(); ++column)
      cells.push_back(static_cast<float>(value(row, column)));
    builder.add_row(row, cells.data());
  }
  return builder.finish();
}

/// A tile from the (up to four) tiles of the level below that it covers: children[row][column], null where
/// there is none. The same as from the cells, once all tiles below are given.
Tile tile_of_children(MatrixSize size, const TileKey& key,
                      const std::array<std::array<const Tile*, 2>, 2>& children);

/// The tiles that are at hand.
using TileMap = std::map<TileKey, std::shared_ptr<const Tile>>;

/// The tiles that a view of width x height pixels needs at its drawn level, nearest to the middle first.
/// Empty where it shows no cell.
std::vector<TileKey> visible_tiles(const Camera& camera, MatrixSize size, int width, int height);

/// Tile that provides the texels of a requested tile: that tile or, while it is missing, the nearest one
/// above it (`shift` levels up: texel t of the requested level is texel t >> shift there). Empty if there is
/// none.
struct FoundTile {
  TileKey key;
  int shift = 0;
};
std::optional<FoundTile> find_tile(const TileMap& tiles, const TileKey& wanted, MatrixSize size);

/// Reads texels of one level from the tiles at hand, those above it standing in for missing ones. Quick where
/// texels of one tile follow each other. Keeps references to what it is given.
class TexelReader {
 public:
  TexelReader(const TileMap& tiles, MatrixSize size, int level) : tiles_(tiles), size_(size), level_(level) {}
  /// Empty where no tile has it yet; NaN where it has no value.
  std::optional<float> at(Index row, Index column);

 private:
  const TileMap& tiles_;
  MatrixSize size_;
  int level_;
  Index tile_row_ = -1, tile_column_ = -1;
  const Tile* found_ = nullptr;
  int shift_ = 0;
};

}  // namespace kvreplay::viewer
