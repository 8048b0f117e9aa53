#include "viewer/model/tiles.hpp"

#include "viewer/model/numbers.hpp"

#include <cassert>

namespace kvreplay::viewer {
namespace {

/// The texels of a level that an axis shows, [first, last); empty where it shows no cell.
struct TexelSpan {
  Index first = 0, last = 0;
};
TexelSpan seen_texels(const AxisView& axis, int pixels, Index cells, int level) {
  const double end = static_cast<double>(cells);
  const double from = std::clamp(std::floor(axis.cell_at(0)), 0.0, end);
  const double to = std::clamp(std::ceil(axis.cell_at(pixels)), 0.0, end);
  if (!(from < to)) return {};
  return {static_cast<Index>(from) >> level, texels(static_cast<Index>(to), level)};
}

}  // namespace

void TileStats::add(const float* values, Index count) {
  // Lanes without branches: the compiler makes vectors of them.
  constexpr Index kLanes = 16;
  std::array<float, kLanes> least, most, positive;
  std::array<std::int32_t, kLanes> known{};
  least.fill(kInfinity);
  most.fill(-kInfinity);
  positive.fill(kInfinity);
  const auto take = [&](std::size_t lane, float value) {
    const bool is_known = std::abs(value) < kInfinity;
    const float low = is_known ? value : kInfinity, high = is_known ? value : -kInfinity;
    const float above = value > 0 ? low : kInfinity;
    least[lane] = low < least[lane] ? low : least[lane];
    most[lane] = high > most[lane] ? high : most[lane];
    positive[lane] = above < positive[lane] ? above : positive[lane];
    known[lane] += is_known ? 1 : 0;
  };
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) take(lane, values[i + static_cast<Index>(lane)]);
  for (; i < count; ++i) take(0, values[i]);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    min = std::min(min, least[lane]);
    max = std::max(max, most[lane]);
    least_positive = std::min(least_positive, positive[lane]);
    finite += known[lane];
  }
  cells += count;
}

void TileStats::merge(const TileStats& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  least_positive = std::min(least_positive, other.least_positive);
  cells += other.cells;
  finite += other.finite;
}

std::size_t bytes_of(const Tile& tile) { return sizeof(Tile) + tile.values.capacity() * sizeof(float); }

Index texels(Index cells, int level) {
  const Index a_texel = Index{1} << level;
  return cells / a_texel + (cells % a_texel != 0 ? 1 : 0);
}

MatrixSize tile_extent(MatrixSize size, const TileKey& key) {
  const auto along = [&](Index cells, Index tile) {
    return std::clamp(texels(cells, key.level) - tile * kTileSize, Index{0}, kTileSize);
  };
  const MatrixSize extent = {along(size.rows, key.row), along(size.columns, key.column)};
  return extent.rows == 0 || extent.columns == 0 ? MatrixSize{} : extent;
}

int top_level(MatrixSize size) {
  int level = 0;
  while (texels(std::max(size.rows, size.columns), level) > kTopTexels) ++level;
  return level;
}

int drawn_level(const Camera& camera, MatrixSize size) {
  const double cells_per_pixel = std::max(camera.x.cells_per_pixel, camera.y.cells_per_pixel);
  // Whole powers of two come out of divisions with an error in their last digits.
  const double level = std::ceil(std::log2(cells_per_pixel) - 1e-9);
  const int top = top_level(size);
  return level > 0 ? static_cast<int>(std::min(level, static_cast<double>(top))) : 0;
}

TileBuilder::TileBuilder(MatrixSize size, const TileKey& key) : size_(size), key_(key) {
  const MatrixSize extent = tile_extent(size, key);
  tile_.rows = extent.rows;
  tile_.columns = extent.columns;
  tile_.values.assign(extent.rows * extent.columns, kNaN);
}

Index TileBuilder::first_row() const { return std::min((key_.row * kTileSize) << key_.level, size_.rows); }
Index TileBuilder::end_row() const {
  return std::min((key_.row * kTileSize + tile_.rows) << key_.level, size_.rows);
}
Index TileBuilder::first_column() const {
  return std::min((key_.column * kTileSize) << key_.level, size_.columns);
}
Index TileBuilder::end_column() const {
  return std::min((key_.column * kTileSize + tile_.columns) << key_.level, size_.columns);
}

void TileBuilder::add_row(Index row, const float* cells) {
  assert(row >= first_row() && row < end_row());
  const Index count = end_column() - first_column();
  tile_.stats.add(cells, count);
  float* texel = tile_.values.data() + ((row - first_row()) >> key_.level) * tile_.columns;
  if (key_.level == 0) {
    std::copy_n(cells, count, texel);
    return;
  }
  const Index a_texel = Index{1} << key_.level;
  for (Index begin = 0; begin < count; begin += a_texel, ++texel) {
    std::uint32_t best = pool_rank(*texel);
    const Index end = std::min(begin + a_texel, count);
    for (Index c = begin; c < end; ++c) best = std::max(best, pool_rank(cells[c]));
    *texel = value_of_rank(best);
  }
}

Tile TileBuilder::finish() {
  const Index given = tile_.stats.cells;
  tile_.stats.cells = (end_row() - first_row()) * (end_column() - first_column());
  assert(given <= tile_.stats.cells);
  static_cast<void>(given);
  return std::move(tile_);
}

Tile tile_of_children(MatrixSize size, const TileKey& key,
                      const std::array<std::array<const Tile*, 2>, 2>& children) {
  const MatrixSize extent = tile_extent(size, key);
  Tile tile;
  tile.rows = extent.rows;
  tile.columns = extent.columns;
  tile.values.assign(extent.rows * extent.columns, kNaN);
  for (Index part_row = 0; part_row < 2; ++part_row)
    for (Index part_column = 0; part_column < 2; ++part_column) {
      const Tile* child = children[part_row][part_column];
      if (child == nullptr) continue;
      tile.stats.merge(child->stats);
      for (Index r = 0; r < child->rows; ++r) {
        const float* from = child->values.data() + r * child->columns;
        float* to = tile.values.data() + (part_row * kTileSize + r) / 2 * extent.columns;
        to += part_column * kTileSize / 2;
        for (Index c = 0; c + 1 < child->columns; c += 2)
          to[c / 2] =
              value_of_rank(std::max({pool_rank(to[c / 2]), pool_rank(from[c]), pool_rank(from[c + 1])}));
        if (const Index c = child->columns - 1; c % 2 == 0) to[c / 2] = pooled(to[c / 2], from[c]);
      }
    }
  return tile;
}

std::vector<TileKey> visible_tiles(const Camera& camera, MatrixSize size, int width, int height) {
  const int level = drawn_level(camera, size);
  const TexelSpan columns = seen_texels(camera.x, width, size.columns, level);
  const TexelSpan rows = seen_texels(camera.y, height, size.rows, level);
  std::vector<TileKey> keys;
  for (Index row = rows.first >> kTileBits; row < texels(rows.last, kTileBits); ++row)
    for (Index column = columns.first >> kTileBits; column < texels(columns.last, kTileBits); ++column)
      keys.push_back({level, row, column});
  const double a_tile = static_cast<double>(kTileSize << level);
  const auto pixels_off = [&](const TileKey& key) {
    const double x = camera.x.pixel_of((static_cast<double>(key.column) + 0.5) * a_tile) - width / 2.0;
    const double y = camera.y.pixel_of((static_cast<double>(key.row) + 0.5) * a_tile) - height / 2.0;
    return x * x + y * y;
  };
  std::stable_sort(keys.begin(), keys.end(), [&](const TileKey& one, const TileKey& other) {
    return pixels_off(one) < pixels_off(other);
  });
  return keys;
}

std::optional<FoundTile> find_tile(const TileMap& tiles, const TileKey& wanted, MatrixSize size) {
  const int top = std::max(top_level(size), wanted.level);
  for (TileKey key = wanted; key.level <= top; key = key.parent()) {
    const auto found = tiles.find(key);
    if (found != tiles.end() && found->second) return FoundTile{key, key.level - wanted.level};
  }
  return std::nullopt;
}

std::optional<float> TexelReader::at(Index row, Index column) {
  const Index tile_row = row >> kTileBits, tile_column = column >> kTileBits;
  if (tile_row != tile_row_ || tile_column != tile_column_) {
    tile_row_ = tile_row;
    tile_column_ = tile_column;
    const std::optional<FoundTile> found = find_tile(tiles_, {level_, tile_row, tile_column}, size_);
    found_ = found ? tiles_.at(found->key).get() : nullptr;
    shift_ = found ? found->shift : 0;
  }
  if (found_ == nullptr) return std::nullopt;
  const Index in_row = (row >> shift_) & (kTileSize - 1), in_column = (column >> shift_) & (kTileSize - 1);
  if (in_row >= found_->rows || in_column >= found_->columns) return std::nullopt;
  return found_->values[in_row * found_->columns + in_column];
}

}  // namespace kvreplay::viewer
