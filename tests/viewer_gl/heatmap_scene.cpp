#include "tests/viewer_gl/heatmap_scene.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <random>

namespace kvreplay::viewer {
namespace {

float random_value(std::mt19937_64& random, Values values) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float unkind[] = {nan,      -nan,   inf,    -inf, 0,  -0.0F, 3.4e38F,
                              -3.4e38F, 1e-45F, 1e-38F, 3,    -2, 1,     1e-6F};
  const std::uint64_t bits = random();
  if (values == Values::unkind && bits % 4 == 0) return unkind[bits / 4 % std::size(unkind)];
  if (bits % 16 == 1) return 0;
  std::uniform_real_distribution<float> exponent(-9, 3);
  const float size = std::pow(10.0F, exponent(random));
  return (bits & 64) != 0 ? -size : size;
}

int apart(std::uint8_t a, std::uint8_t b) { return std::abs(static_cast<int>(a) - static_cast<int>(b)); }

}  // namespace

std::shared_ptr<const Tile> random_tile(MatrixSize size, const TileKey& key, Values values,
                                        std::uint64_t seed) {
  const MatrixSize extent = tile_extent(size, key);
  auto tile = std::make_shared<Tile>();
  tile->rows = extent.rows;
  tile->columns = extent.columns;
  std::seed_seq seeds{static_cast<Index>(seed), static_cast<Index>(key.level), key.row, key.column};
  std::mt19937_64 random(seeds);
  tile->values.resize(extent.rows * extent.columns);
  for (float& value : tile->values) value = random_value(random, values);
  return tile;
}

TileMap visible_scene(const HeatmapImage& image, Values values, std::uint64_t seed) {
  TileMap tiles;
  for (const TileKey& key : visible_tiles(image.camera, image.size, image.width, image.height))
    tiles[key] = random_tile(image.size, key, values, seed);
  return tiles;
}

HeatmapImage fitted_image(MatrixSize size, int width, int height) {
  HeatmapImage image;
  image.size = size;
  image.width = width;
  image.height = height;
  image.camera = fitted(size, width, height, true);
  image.scale = usable({ScaleKind::linear, -2, 3, 1});
  return image;
}

Difference difference(const std::vector<Rgb>& shown, const std::vector<Rgb>& expected, int width) {
  Difference worst;
  if (shown.size() != expected.size()) {
    worst.largest = 255;
    worst.pixels = expected.size();
    worst.where = fmt::format("{} pixels for {}", shown.size(), expected.size());
    return worst;
  }
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const int most = std::max({apart(shown[i].r, expected[i].r), apart(shown[i].g, expected[i].g),
                               apart(shown[i].b, expected[i].b)});
    if (most > 2) ++worst.pixels;
    if (most <= worst.largest) continue;
    worst.largest = most;
    const auto w = static_cast<std::size_t>(width);
    worst.where = fmt::format("({}, {}): {} for {}", i % w, i / w, hex(shown[i]), hex(expected[i]));
  }
  return worst;
}

}  // namespace kvreplay::viewer
