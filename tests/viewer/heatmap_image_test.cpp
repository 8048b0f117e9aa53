#include "viewer/model/heatmap_image.hpp"

#include "tests/support/catch.hpp"
#include "tests/viewer/rendered_heatmap.hpp"

#include <limits>
#include <random>
#include <set>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TileMap one_tile(MatrixSize size, const std::vector<float>& values) {
  TileBuilder builder(size, {0, 0, 0});
  for (Index row = 0; row < size.rows; ++row) builder.add_row(row, values.data() + row * size.columns);
  return {{TileKey{0, 0, 0}, std::make_shared<const Tile>(builder.finish())}};
}

/// A picture of `columns` cells in one row, 10 pixels a cell.
HeatmapImage strip(Index columns) {
  HeatmapImage image;
  image.size = {1, columns};
  image.width = static_cast<int>(10 * columns);
  image.height = 10;
  image.camera = {{0, 0.1}, {0, 0.1}};
  return image;
}

/// All tiles of a matrix that is NaN but for a few cells.
TileMap sparse_pyramid(MatrixSize size, const std::map<std::pair<Index, Index>, float>& cells) {
  TileMap tiles;
  std::set<TileKey> keys;
  for (const auto& cell : cells)
    keys.insert({0, cell.first.first / kTileSize, cell.first.second / kTileSize});
  for (const TileKey& key : keys) {
    TileBuilder builder(size, key);
    std::vector<float> row(builder.end_column() - builder.first_column());
    for (Index r = builder.first_row(); r < builder.end_row(); ++r) {
      std::fill(row.begin(), row.end(), 0.0F);
      for (const auto& [at, value] : cells)
        if (at.first == r && at.second >= builder.first_column() && at.second < builder.end_column())
          row[at.second - builder.first_column()] = value;
      builder.add_row(r, row.data());
    }
    tiles[key] = std::make_shared<const Tile>(builder.finish());
  }
  for (int level = 1; level <= top_level(size); ++level) {
    std::set<TileKey> above;
    for (const TileKey& key : keys) above.insert(key.parent());
    for (const TileKey& key : above) {
      const auto child = [&](Index row, Index column) {
        const auto found = tiles.find({level - 1, 2 * key.row + row, 2 * key.column + column});
        return found == tiles.end() ? nullptr : found->second.get();
      };
      tiles[key] = std::make_shared<const Tile>(
          tile_of_children(size, key, {{{child(0, 0), child(0, 1)}, {child(1, 0), child(1, 1)}}}));
    }
    keys = above;
  }
  return tiles;
}

}  // namespace

TEST_CASE("pixels take the colours of their cells", "[viewer][heatmap_image]") {
  HeatmapImage image = strip(5);
  const TileMap tiles = one_tile(image.size, {0, 1, 0.5F, 0.25F, 128.0F / 255});
  CHECK(color_at(image, tiles, 0, 0) == Rgb{68, 1, 84});
  CHECK(color_at(image, tiles, 9, 9) == Rgb{68, 1, 84});
  CHECK(color_at(image, tiles, 10, 5) == Rgb{253, 231, 37});
  CHECK(color_at(image, tiles, 49, 5) == Rgb{33, 145, 140});
  CHECK(color_at(image, tiles, 35, 5) == color_of(ColorMap::viridis, 0.25F));
  image.colors = ColorMap::rdbu;
  image.scale = {ScaleKind::linear, -1, 1, 1};
  CHECK(color_at(image, tiles, 15, 0) == Rgb{103, 0, 31});
  CHECK(color_at(image, tiles, 5, 0) == Rgb{247, 247, 247});
  image.scale = {ScaleKind::log, 0.25F, 1, 1};
  CHECK(color_at(image, tiles, 5, 0) == Rgb{5, 48, 97});  // 0 lies below
  CHECK(color_at(image, tiles, 25, 0) == Rgb{247, 247, 247});
}

TEST_CASE("what has no colour is hatched, marked, pending or outside", "[viewer][heatmap_image]") {
  HeatmapImage image = strip(7);
  const TileMap tiles = one_tile(image.size, {kNaN, -1, 0, 1, 2, kInfinity, -kInfinity});
  const HeatmapInk& ink = image.ink;
  CHECK(color_at(image, tiles, 0, 0) == ink.hatch_a);
  CHECK(color_at(image, tiles, 3, 0) == ink.hatch_a);
  CHECK(color_at(image, tiles, 4, 0) == ink.hatch_b);
  CHECK(color_at(image, tiles, 0, 4) == ink.hatch_b);
  CHECK(color_at(image, tiles, 4, 4) == ink.hatch_a);

  const auto& ends = color_table(ColorMap::viridis);
  const Rgb unmarked[] = {ends[0], ends[0], ends[255], ends[255], ends[255], ends[0]};
  for (int cell = 1; cell < 7; ++cell) CHECK(color_at(image, tiles, 10 * cell, 0) == unmarked[cell - 1]);
  image.ink.mark_beyond = true;
  const Rgb marked[] = {ink.under, ends[0], ends[255], ink.over, ink.over, ink.under};
  for (int cell = 1; cell < 7; ++cell) CHECK(color_at(image, tiles, 10 * cell, 0) == marked[cell - 1]);
  image.scale = {ScaleKind::log, 0.5F, 1, 1};
  CHECK(color_at(image, tiles, 20, 0) == ink.under);

  CHECK(color_at(image, {}, 35, 5) == ink.pending);
  image.camera.x.start = -1;
  CHECK(color_at(image, tiles, 9, 5) == ink.outside);
  CHECK(color_at(image, tiles, 10, 0) == ink.hatch_a);
  image.camera.y.start = 0.5;
  CHECK(color_at(image, tiles, 30, 5) == ink.outside);
  image.size = {0, 0};
  CHECK(color_at(image, {}, 0, 0) == ink.outside);
}

TEST_CASE("evicted columns fade, whatever their colour", "[viewer][heatmap_image]") {
  HeatmapImage image = strip(4);
  const TileMap tiles = one_tile(image.size, {1, 1, kNaN, 0});
  image.faded_columns = {1, 0, 1, 0};
  CHECK(faded_pixels(image) == std::vector<std::uint8_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0,
                                                         0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                         1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  // 253 + (32 - 253) * 0.72 = 93.88 and so on.
  CHECK(color_at(image, tiles, 5, 5) == Rgb{94, 88, 36});
  CHECK(color_at(image, tiles, 15, 5) == Rgb{253, 231, 37});
  CHECK(color_at(image, tiles, 20, 0) == Rgb{45, 46, 50});  // of the hatching
  CHECK(color_at(image, {}, 5, 5) == Rgb{38, 39, 42});      // of what is pending

  // Zoomed out, a pixel fades if all of its columns do.
  image.size = {1, 8};
  image.faded_columns = {1, 1, 1, 0, 0, 0, 1, 1};
  image.camera.x.cells_per_pixel = 2;
  image.width = 4;
  CHECK(faded_pixels(image) == std::vector<std::uint8_t>{1, 0, 0, 1});
  // Columns that are not known are not evicted.
  image.faded_columns = {1, 1, 1};
  CHECK(faded_pixels(image) == std::vector<std::uint8_t>{1, 0, 0, 0});
}

TEST_CASE("a picture is its pixels", "[viewer][heatmap_image]") {
  std::mt19937 random(8);
  HeatmapImage image;
  image.size = {61, 47};
  image.width = 83;
  image.height = 31;
  image.camera = fitted(image.size, image.width, image.height, true);
  image.ink.mark_beyond = true;
  std::vector<float> values;
  for (Index i = 0; i < image.size.rows * image.size.columns; ++i)
    values.push_back(random() % 9 == 0 ? kNaN : static_cast<float>(random() % 1000) / 800);
  for (Index i = 0; i < image.size.columns; ++i) image.faded_columns.push_back(random() % 2 == 0 ? 1 : 0);
  const TileMap tiles = one_tile(image.size, values);
  const std::vector<Rgb> pixels = rendered(image, tiles);
  REQUIRE(pixels.size() == 83 * 31);
  bool equal = true;
  auto pixel = pixels.begin();
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x) equal = equal && *pixel++ == color_at(image, tiles, x, y);
  CHECK(equal);
  image.width = 0;
  CHECK(rendered(image, tiles).empty());
}

TEST_CASE("a matrix seen whole shows every texel of its level", "[viewer][heatmap_image]") {
  for (Index cells = 1; cells < 9000; cells += 1 + cells / 7)
    for (const int pixels : {1, 2, 3, 17, 250, 600, 1000, 1024}) {
      const Camera camera = fitted({cells, cells}, pixels, pixels, true);
      const int level = drawn_level(camera, {cells, cells});
      const std::vector<std::int32_t> shown = axis_texels(camera.x, pixels, cells, level);
      REQUIRE(shown.size() == static_cast<std::size_t>(pixels));
      std::set<std::int32_t> seen(shown.begin(), shown.end());
      seen.erase(-1);
      INFO(cells << " cells in " << pixels << " pixels, level " << level);
      // A tiny panel may show less than the top level holds.
      if (camera.x.cells_per_pixel <= static_cast<double>(Index{1} << level) * (1 + 1e-9))
        CHECK(std::ssize(seen) == texels(cells, level));
      CHECK(*seen.rbegin() < texels(cells, level));
      int last = -1;
      for (const std::int32_t texel : shown) {
        if (texel < 0) continue;
        CHECK((texel == last || texel == last + 1 || level == top_level({cells, cells})));
        last = texel;
      }
    }
}

TEST_CASE("pixels look at the cell under their middle", "[viewer][heatmap_image]") {
  CHECK(axis_texels({0, 0.5}, 6, 2, 0) == std::vector<std::int32_t>{0, 0, 1, 1, -1, -1});
  CHECK(axis_texels({-1.25, 0.5}, 6, 9, 0) == std::vector<std::int32_t>{-1, -1, 0, 0, 1, 1});
  CHECK(axis_texels({0, 2}, 3, 6, 1) == std::vector<std::int32_t>{0, 1, 2});
  // The ninth cell alone is the last texel of level 2: between two middles, but shown.
  CHECK(axis_texels({0, 9 / 4.0}, 4, 9, 2) == std::vector<std::int32_t>{0, 0, 1, 2});
  CHECK(axis_texels({0, 4}, 3, 9, 2) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(axis_texels({0, 1}, 0, 9, 0).empty());
  CHECK(axis_texels({0, 1}, 2, 0, 0) == std::vector<std::int32_t>{-1, -1});
  CHECK(axis_texels({131070.25, 0.25}, 8, 131072, 0) ==
        std::vector<std::int32_t>{131070, 131070, 131070, 131071, 131071, 131071, 131071, -1});
}

TEST_CASE("an outlier among 131072 x 131072 cells is seen at every zoom", "[viewer][heatmap_image]") {
  const MatrixSize size{131072, 131072};
  const Index row = 70001, column = 131071;
  const TileMap tiles = sparse_pyramid(size, {{{row, column}, -7.0F}, {{3, 5}, 0.5F}});
  HeatmapImage image;
  image.size = size;
  image.width = 240;
  image.height = 180;
  image.colors = ColorMap::rdbu;
  image.scale = {ScaleKind::linear, -7, 7, 1};
  image.camera = fitted(size, image.width, image.height, true);
  const Rgb blue = color_table(ColorMap::rdbu)[0];
  for (int step = 0; step < 18; ++step) {
    image.camera = showing(image.camera, size, image.width, image.height, row, column);
    int found = 0;
    for (const Rgb pixel : rendered(image, tiles)) found += pixel == blue ? 1 : 0;
    INFO("cells per pixel " << image.camera.x.cells_per_pixel);
    CHECK(found > 0);
    image.camera = zoomed(image.camera, size, image.width, image.height, image.camera.x.pixel_of(131071.5),
                          image.camera.y.pixel_of(70001.5), 2, 2);
  }
}
