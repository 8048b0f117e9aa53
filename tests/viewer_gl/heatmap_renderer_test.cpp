#include "viewer/gl/heatmap_renderer.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/viewer/rendered_heatmap.hpp"
#include "tests/viewer_gl/heatmap_scene.hpp"
#include "viewer/gl/headless_context.hpp"

#include <algorithm>
#include <memory>
#include <vector>

namespace kvreplay::viewer {
namespace {

int off(const HeatmapRenderer& renderer, const HeatmapImage& image, const TileMap& tiles) {
  return difference(renderer.pixels(), rendered(image, tiles), image.width).largest;
}

HeatmapImage far_view(int width, int height) {
  HeatmapImage image = fitted_image({4096, 4096}, width, height);
  image.camera = {{1000.5, 1}, {2000.25, 1}};
  return image;
}

TEST_CASE("renderer: a cache smaller than what is visible still draws right", "[viewer][gl]") {
  const HeadlessContext context;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>(), {.bytes = 1, .uploads = 1000});
  const HeatmapImage image = far_view(900, 700);
  const TileMap tiles = visible_scene(image, Values::unkind);
  REQUIRE(tiles.size() > 12);
  CHECK_FALSE(renderer.draw(image, tiles));
  CHECK(off(renderer, image, tiles) <= 2);
  CHECK(renderer.tile_bytes() == tiles.size() * TileTextures::kLayerBytes);

  HeatmapImage moved = image;
  moved.camera.x.start = 100;
  const TileMap others = visible_scene(moved, Values::unkind);
  CHECK_FALSE(renderer.draw(moved, others));
  CHECK(off(renderer, moved, others) <= 2);
}

TEST_CASE("renderer: memory stays within its limit", "[viewer][gl]") {
  const HeadlessContext context;
  constexpr std::size_t limit = 40 * TileTextures::kLayerBytes;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>(), {.bytes = limit, .uploads = 1000});
  for (const int width : {300, 700, 1200, 200}) {
    const HeatmapImage image = far_view(width, 500);
    const TileMap tiles = visible_scene(image, Values::signed_decades);
    renderer.draw(image, tiles);
    CHECK(off(renderer, image, tiles) <= 2);
    CHECK(renderer.tile_bytes() <= limit);
  }
  renderer.set_limits({.bytes = 5 * TileTextures::kLayerBytes, .uploads = 1000});
  const HeatmapImage image = far_view(100, 100);
  const TileMap tiles = visible_scene(image, Values::signed_decades);
  renderer.draw(image, tiles);
  CHECK(renderer.tile_bytes() <= 5 * TileTextures::kLayerBytes);
  CHECK(off(renderer, image, tiles) <= 2);
}

TEST_CASE("renderer: tiles are brought once, and nothing is drawn twice", "[viewer][gl]") {
  const HeadlessContext context;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>(), {.uploads = 1000});
  HeatmapImage image = far_view(500, 400);
  TileMap tiles = visible_scene(image, Values::unkind);
  const int count = static_cast<int>(tiles.size());
  for (int i = 0; i < 3; ++i) CHECK_FALSE(renderer.draw(image, tiles));
  CHECK(renderer.uploads() == count);
  CHECK(renderer.drawings() == 1);

  image.camera.x.start += 3;
  renderer.draw(image, tiles);
  CHECK(renderer.uploads() == count);
  CHECK(renderer.drawings() == 2);

  // A tile elsewhere changes nothing; one in view does, though its key stays.
  tiles[{0, 0, 0}] = random_tile(image.size, {0, 0, 0}, Values::unkind, 5);
  renderer.draw(image, tiles);
  CHECK(renderer.drawings() == 2);
  const TileKey key = visible_tiles(image.camera, image.size, image.width, image.height).front();
  tiles[key] = random_tile(image.size, key, Values::unkind, 6);
  renderer.draw(image, tiles);
  CHECK(renderer.drawings() == 3);
  CHECK(renderer.uploads() == count + 1);
  CHECK(off(renderer, image, tiles) <= 2);

  // A tile that goes leaves its place pending.
  tiles.erase(key);
  renderer.draw(image, tiles);
  CHECK(renderer.drawings() == 4);
  CHECK(off(renderer, image, tiles) <= 2);
}

TEST_CASE("renderer: a new tile at the address of an old one is a new tile", "[viewer][gl]") {
  const HeadlessContext context;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>());
  const HeatmapImage image = fitted_image({64, 64}, 64, 64);
  // Both live in the same place, one after the other.
  Tile place = *random_tile(image.size, {}, Values::signed_decades, 1);
  const auto here = [&place] { return std::shared_ptr<const Tile>(&place, [](const Tile*) {}); };
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    place = *random_tile(image.size, {}, Values::signed_decades, seed);
    const TileMap tiles{{TileKey{}, here()}};
    renderer.draw(image, tiles);
    CHECK(renderer.uploads() == static_cast<int>(seed));
    CHECK(off(renderer, image, tiles) <= 2);
  }
}

TEST_CASE("renderer: uploads are spread over frames, coarser tiles standing in", "[viewer][gl]") {
  const HeadlessContext context;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>(), {.uploads = 4});
  const HeatmapImage image = far_view(700, 500);
  const int top = top_level(image.size);
  TileMap tiles{{{top, 0, 0}, random_tile(image.size, {top, 0, 0}, Values::signed_decades, 9)}};
  const TileMap coarse = tiles;
  CHECK_FALSE(renderer.draw(image, tiles));
  CHECK(off(renderer, image, coarse) <= 2);
  for (const auto& [key, tile] : visible_scene(image, Values::signed_decades)) tiles[key] = tile;
  const int count = static_cast<int>(tiles.size()) - 1;
  REQUIRE(count > 8);
  CHECK(renderer.draw(image, tiles));
  CHECK(renderer.uploads() == 5);
  // No pixel is pending: the coarse tile stands in for what has not come.
  const std::vector<Rgb> pixels = renderer.pixels();
  CHECK(std::count(pixels.begin(), pixels.end(), image.ink.pending) == 0);
  int frames = 1;
  while (renderer.draw(image, tiles)) REQUIRE(++frames < 100);
  CHECK(frames + 1 == (count + 3) / 4);
  CHECK(renderer.uploads() == count + 1);
  CHECK(off(renderer, image, tiles) <= 2);
}

TEST_CASE("renderer: malformed tiles are passed over", "[viewer][gl]") {
  const HeadlessContext context;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>());
  const HeatmapImage image = fitted_image({64, 64}, 64, 64);
  auto broken = std::make_shared<Tile>();
  broken->rows = broken->columns = 64;
  broken->values.resize(63);
  renderer.draw(image, {{TileKey{}, broken}});
  CHECK(renderer.uploads() == 0);
  CHECK(renderer.pixels()[65] == image.ink.pending);
}

TEST_CASE("renderer: sizes change, and impossible ones are refused", "[viewer][gl]") {
  const HeadlessContext context;
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>());
  CHECK(renderer.texture() == 0);
  CHECK(renderer.pixels().empty());
  CHECK_FALSE(renderer.draw(fitted_image({10, 10}, 0, 10), {}));
  CHECK(renderer.texture() == 0);
  for (const int width : {10, 200, 7}) {
    const HeatmapImage image = fitted_image({50, 60}, width, 40);
    const TileMap tiles = visible_scene(image, Values::unkind);
    renderer.draw(image, tiles);
    CHECK(renderer.texture() != 0);
    CHECK(off(renderer, image, tiles) <= 2);
  }
  CHECK_THROWS_AS(renderer.draw(fitted_image({50, 60}, 1 << 20, 40), {}), InputError);
  const HeatmapImage image = fitted_image({50, 60}, 70, 40);
  const TileMap tiles = visible_scene(image, Values::unkind);
  renderer.draw(image, tiles);
  CHECK(off(renderer, image, tiles) <= 2);
}

TEST_CASE("renderer: several share one program", "[viewer][gl]") {
  const HeadlessContext context;
  const auto program = std::make_shared<HeatmapProgram>();
  HeatmapRenderer one(program), two(program);
  const HeatmapImage first = fitted_image({50, 60}, 70, 40);
  HeatmapImage second = fitted_image({900, 300}, 200, 100);
  second.colors = ColorMap::rdbu;
  const TileMap of_first = visible_scene(first, Values::unkind),
                of_second = visible_scene(second, Values::unkind);
  one.draw(first, of_first);
  two.draw(second, of_second);
  CHECK(off(one, first, of_first) <= 2);
  CHECK(off(two, second, of_second) <= 2);
}

}  // namespace
}  // namespace kvreplay::viewer
