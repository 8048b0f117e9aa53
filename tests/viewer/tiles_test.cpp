#include "viewer/model/tiles.hpp"

#include "tests/support/catch.hpp"
#include "viewer/model/heatmap_image.hpp"

#include <random>
#include <set>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Cells {
  MatrixSize size;
  std::vector<float> values;
  float at(Index row, Index column) const { return values[row * size.columns + column]; }
};

/// Few distinct magnitudes, so that ties of both signs are common; NaN, infinities and zeros of both signs
/// among them.
Cells unkind_cells(Index rows, Index columns, unsigned seed) {
  std::mt19937 random(seed);
  Cells cells{{rows, columns}, {}};
  for (Index i = 0; i < rows * columns; ++i) {
    const auto kind = random() % 40;
    const float magnitude = static_cast<float>(random() % 5) * 0.5F;
    const float value = kind == 0 ? kInfinity : kind < 12 ? kNaN : magnitude;
    cells.values.push_back(random() % 2 == 0 ? value : -value);
  }
  return cells;
}

Tile built(const Cells& cells, const TileKey& key) {
  TileBuilder builder(cells.size, key);
  for (Index row = builder.first_row(); row < builder.end_row(); ++row)
    builder.add_row(row, cells.values.data() + row * cells.size.columns + builder.first_column());
  return builder.finish();
}

/// What the header says of one texel, cell by cell: NaN where no cell has a value.
float largest_cell(const Cells& cells, Index row, Index column, int level) {
  const Index side = Index{1} << level;
  float best = kNaN;
  for (Index r = row * side; r < std::min((row + 1) * side, cells.size.rows); ++r)
    for (Index c = column * side; c < std::min((column + 1) * side, cells.size.columns); ++c) {
      const float value = cells.at(r, c);
      if (std::isnan(value)) continue;
      const bool larger = std::isnan(best) || std::abs(value) > std::abs(best);
      if (larger || (std::abs(value) == std::abs(best) && !std::signbit(value))) best = value;
    }
  return best;
}

bool same(float one, float other) {
  return (std::isnan(one) && std::isnan(other)) || (one == other && std::signbit(one) == std::signbit(other));
}

bool same(const Tile& one, const Tile& other) {
  bool equal =
      one.rows == other.rows && one.columns == other.columns && one.values.size() == other.values.size();
  for (std::size_t i = 0; equal && i < one.values.size(); ++i) equal = same(one.values[i], other.values[i]);
  return equal && one.stats.min == other.stats.min && one.stats.max == other.stats.max &&
         one.stats.least_positive == other.stats.least_positive && one.stats.cells == other.stats.cells &&
         one.stats.finite == other.stats.finite;
}

std::shared_ptr<const Tile> tile_of(MatrixSize size, const TileKey& key, float value) {
  Tile tile;
  const MatrixSize extent = tile_extent(size, key);
  tile.rows = extent.rows;
  tile.columns = extent.columns;
  tile.values.assign(extent.rows * extent.columns, value);
  return std::make_shared<const Tile>(std::move(tile));
}

}  // namespace

TEST_CASE("a pooled texel does not depend on the order of its cells", "[viewer][tiles]") {
  const std::vector<float> values = {0.0F, -0.0F, 1, -1, 2, -2, kInfinity, -kInfinity, kNaN};
  for (const float a : values)
    for (const float b : values) {
      CHECK(same(pooled(a, b), pooled(b, a)));
      for (const float c : values) CHECK(same(pooled(pooled(a, b), c), pooled(a, pooled(b, c))));
    }
  CHECK(pooled(-3, 2) == -3);
  CHECK(pooled(-2, 2) == 2);
  CHECK(pooled(kNaN, -1) == -1);
  CHECK(std::isnan(pooled(kNaN, kNaN)));
}

TEST_CASE("every level of a pyramid holds the cells of largest magnitude", "[viewer][tiles]") {
  for (const MatrixSize size :
       {MatrixSize{300, 517}, MatrixSize{1, 1025}, MatrixSize{777, 1}, MatrixSize{1, 1}}) {
    const Cells cells = unkind_cells(size.rows, size.columns, 7);
    for (int level = 0; level <= top_level(size) + 1; ++level)
      for (Index row = 0; row * kTileSize < texels(size.rows, level); ++row)
        for (Index column = 0; column * kTileSize < texels(size.columns, level); ++column) {
          const Tile tile = built(cells, {level, row, column});
          const MatrixSize extent = tile_extent(size, {level, row, column});
          REQUIRE(tile.rows == extent.rows);
          REQUIRE(tile.columns == extent.columns);
          bool equal = true;
          for (Index r = 0; r < tile.rows; ++r)
            for (Index c = 0; c < tile.columns; ++c)
              equal = equal && same(tile.values[r * tile.columns + c],
                                    largest_cell(cells, row * kTileSize + r, column * kTileSize + c, level));
          INFO(size.rows << " x " << size.columns << ", level " << level << ", tile " << row << ", "
                         << column);
          CHECK(equal);
        }
  }
}

TEST_CASE("a tile made of tiles is the tile made of cells", "[viewer][tiles]") {
  for (const MatrixSize size :
       {MatrixSize{700, 1030}, MatrixSize{513, 256}, MatrixSize{1, 2049}, MatrixSize{257, 3}}) {
    const Cells cells = unkind_cells(size.rows, size.columns, 11);
    std::map<TileKey, Tile> below;
    for (Index row = 0; row * kTileSize < size.rows; ++row)
      for (Index column = 0; column * kTileSize < size.columns; ++column)
        below.emplace(TileKey{0, row, column}, built(cells, {0, row, column}));
    for (int level = 1; level <= top_level(size); ++level) {
      std::map<TileKey, Tile> here;
      for (const auto& [child, tile] : below) {
        const TileKey key = child.parent();
        const auto find = [&](Index row, Index column) -> const Tile* {
          const auto found = below.find({level - 1, 2 * key.row + row, 2 * key.column + column});
          return found == below.end() ? nullptr : &found->second;
        };
        here.insert_or_assign(
            key, tile_of_children(size, key, {{{find(0, 0), find(0, 1)}, {find(1, 0), find(1, 1)}}}));
      }
      for (const auto& [key, tile] : here) CHECK(same(tile, built(cells, key)));
      below = std::move(here);
    }
    REQUIRE(below.size() == 1);
    CHECK(below.begin()->second.stats.cells == size.rows * size.columns);
  }
}

TEST_CASE("tiles count what they are made of", "[viewer][tiles]") {
  std::vector<float> values(100, 2.0F);
  values[3] = kNaN;
  values[50] = -kInfinity;
  values[51] = kInfinity;
  values[98] = -7;
  values[99] = 0.25F;
  TileStats stats;
  stats.add(values.data(), 100);
  CHECK(stats.cells == 100);
  CHECK(stats.finite == 97);
  CHECK(stats.min == -7);
  CHECK(stats.max == 2);
  CHECK(stats.least_positive == 0.25F);
  CHECK(stats.largest_magnitude() == 7);

  TileStats none;
  none.add(values.data() + 50, 2);
  CHECK(none.finite == 0);
  CHECK(none.largest_magnitude() == 0);
  none.merge(stats);
  CHECK(none.cells == 102);
  CHECK(none.min == -7);

  TileBuilder half({4, 3}, {0, 0, 0});
  const std::vector<float> row = {1, 2, 3};
  half.add_row(2, row.data());
  const Tile tile = half.finish();
  CHECK(tile.stats.cells == 12);
  CHECK(tile.stats.finite == 3);
  CHECK(std::isnan(tile.values[0]));
  CHECK(tile.values[8] == 3);
  CHECK(bytes_of(tile) >= 12 * sizeof(float));
}

TEST_CASE("tile sizes of matrices up to 131072 x 131072", "[viewer][tiles]") {
  const MatrixSize large{131072, 131071};
  CHECK(top_level(large) == 11);
  CHECK(texels(131071, 9) == 256);
  CHECK(tile_extent(large, {0, 511, 511}).rows == 256);
  CHECK(tile_extent(large, {0, 511, 511}).columns == 255);
  CHECK(tile_extent(large, {9, 0, 0}) == MatrixSize{256, 256});
  CHECK(tile_extent(large, {0, 512, 0}) == MatrixSize{});
  CHECK(tile_extent({0, 5}, {0, 0, 0}) == MatrixSize{});
  CHECK(top_level({0, 0}) == 0);
  CHECK(top_level({64, 1}) == 0);
  CHECK(top_level({3, 65}) == 1);

  const TileBuilder last(large, {3, 63, 63});
  CHECK(last.first_row() == 129024);
  CHECK(last.end_row() == 131072);
  CHECK(last.first_column() == 129024);
  CHECK(last.end_column() == 131071);
  const TileBuilder beyond(large, {0, 600, 0});
  CHECK(beyond.first_row() == beyond.end_row());
}

TEST_CASE("the drawn level is the smallest without skipped texels", "[viewer][tiles]") {
  const MatrixSize size{4096, 4096};
  const auto level = [&](double x, double y) { return drawn_level({{0, x}, {0, y}}, size); };
  CHECK(level(0.01, 0.5) == 0);
  CHECK(level(1, 1) == 0);
  CHECK(level(1.01, 1) == 1);
  CHECK(level(2, 0.1) == 1);
  CHECK(level(2.5, 3) == 2);
  CHECK(level(1, 4) == 2);
  CHECK(level(1000, 1000) == 6);  // 64 texels a side
  CHECK(drawn_level({}, {0, 0}) == 0);
}

TEST_CASE("visible tiles hold every pixel's texel, nearest first", "[viewer][tiles]") {
  std::mt19937 random(3);
  for (const MatrixSize size :
       {MatrixSize{131072, 131072}, MatrixSize{1000, 3}, MatrixSize{1, 5000}, MatrixSize{300, 300}})
    for (int trial = 0; trial < 30; ++trial) {
      const int width = 1 + static_cast<int>(random() % 900), height = 1 + static_cast<int>(random() % 700);
      Camera camera = fitted(size, width, height, trial % 2 == 0);
      const double closer = std::pow(2.0, static_cast<double>(random() % 12));
      camera = zoomed(camera, size, width, height, static_cast<double>(random() % 900),
                      static_cast<double>(random() % 700), closer, closer);
      const int level = drawn_level(camera, size);
      const std::vector<TileKey> keys = visible_tiles(camera, size, width, height);
      const std::set<TileKey> set(keys.begin(), keys.end());
      REQUIRE(set.size() == keys.size());
      std::set<TileKey> needed;
      const auto columns = axis_texels(camera.x, width, size.columns, level);
      const auto rows = axis_texels(camera.y, height, size.rows, level);
      for (const std::int32_t row : rows)
        for (const std::int32_t column : columns)
          if (row >= 0 && column >= 0) needed.insert({level, row / kTileSize, column / kTileSize});
      CHECK(std::includes(set.begin(), set.end(), needed.begin(), needed.end()));
      // No more than those and the ones whose edge a pixel's middle just misses.
      CHECK(set.size() <= static_cast<std::size_t>((width / kTileSize + 3) * (height / kTileSize + 3)));
      const auto off = [&](const TileKey& key) {
        const double side = static_cast<double>(kTileSize << level);
        return std::hypot(camera.x.pixel_of((static_cast<double>(key.column) + 0.5) * side) - width / 2.0,
                          camera.y.pixel_of((static_cast<double>(key.row) + 0.5) * side) - height / 2.0);
      };
      for (std::size_t i = 1; i < keys.size(); ++i) CHECK(off(keys[i - 1]) <= off(keys[i]) + 1e-6);
    }
  CHECK(visible_tiles({}, {0, 0}, 100, 100).empty());
  CHECK(visible_tiles({{-500, 1}, {0, 1}}, {50, 50}, 100, 100).empty());
}

TEST_CASE("a missing tile is found in the nearest one above it", "[viewer][tiles]") {
  const MatrixSize size{5000, 5000};
  TileMap tiles;
  CHECK_FALSE(find_tile(tiles, {0, 19, 19}, size).has_value());
  tiles[{5, 0, 0}] = tile_of(size, {5, 0, 0}, 5);
  tiles[{2, 4, 4}] = tile_of(size, {2, 4, 4}, 2);
  tiles[{1, 9, 9}] = nullptr;
  REQUIRE(find_tile(tiles, {0, 19, 19}, size).has_value());
  CHECK(find_tile(tiles, {0, 19, 19}, size)->key == TileKey{2, 4, 4});
  CHECK(find_tile(tiles, {0, 19, 19}, size)->shift == 2);
  CHECK(find_tile(tiles, {0, 0, 0}, size)->shift == 5);
  CHECK(find_tile(tiles, {2, 4, 4}, size)->shift == 0);
  CHECK(find_tile(tiles, {5, 0, 0}, size)->key == TileKey{5, 0, 0});
  TexelReader texels_of(tiles, size, 0);
  CHECK(texels_of.at(4999, 4999) == 2.0F);
  CHECK(texels_of.at(0, 4999) == 5.0F);
}

TEST_CASE("texels of tiles above are those of the cells below", "[viewer][tiles]") {
  const Cells cells = unkind_cells(700, 900, 5);
  TileMap tiles;
  tiles[{1, 0, 1}] = std::make_shared<const Tile>(built(cells, {1, 0, 1}));
  TexelReader reader(tiles, cells.size, 0);
  for (const auto& [row, column] : {std::pair<Index, Index>{0, 512}, {511, 899}, {77, 613}, {510, 514}}) {
    REQUIRE(reader.at(row, column).has_value());
    CHECK(same(*reader.at(row, column), largest_cell(cells, row / 2, column / 2, 1)));
  }
  CHECK_FALSE(reader.at(0, 511).has_value());
  CHECK_FALSE(reader.at(512, 512).has_value());
}
