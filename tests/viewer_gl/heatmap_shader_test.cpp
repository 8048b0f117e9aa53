
#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/viewer/rendered_heatmap.hpp"
#include "tests/viewer_gl/heatmap_scene.hpp"
#include "viewer/gl/headless_context.hpp"
#include "viewer/gl/heatmap_renderer.hpp"

#include <algorithm>
#include <set>
#include <tuple>

// The shader against color_at(): two levels are what rounding to 8 bits on both sides, and logarithms of
// different origin, may differ by.

namespace kvreplay::viewer {
namespace {

constexpr HeatmapLimits kAllAtOnce{.bytes = std::size_t{64} << 20, .uploads = 100000};

Difference shader_difference(const HeatmapImage& image, const TileMap& tiles,
                             const std::string& source = heatmap_fragment_source()) {
  HeatmapRenderer renderer(std::make_shared<HeatmapProgram>(source), kAllAtOnce);
  CHECK_FALSE(renderer.draw(image, tiles));
  return difference(renderer.pixels(), rendered(image, tiles), image.width);
}

void check_same(const HeatmapImage& image, const TileMap& tiles) {
  const Difference found = shader_difference(image, tiles);
  INFO(found.where);
  CHECK(found.largest <= 2);
}

std::size_t colors_in(const std::vector<Rgb>& pixels) {
  std::set<std::tuple<int, int, int>> colors;
  for (const Rgb& pixel : pixels) colors.insert({pixel.r, pixel.g, pixel.b});
  return colors.size();
}

const ValueScale kScales[] = {
    {ScaleKind::linear, -2, 3, 1},         {ScaleKind::linear, 0, 1e-30F, 1},
    {ScaleKind::linear, -1e38F, 1e38F, 1}, {ScaleKind::linear, 1, 1.0001F, 1},
    {ScaleKind::log, 1e-8F, 100, 1},       {ScaleKind::log, 1, 1.01F, 1},
    {ScaleKind::log, 1e-30F, 1e38F, 1},    {ScaleKind::symlog, -100, 100, 1e-3F},
    {ScaleKind::symlog, -1, 1000, 1e-9F},  {ScaleKind::symlog, 0.5F, 2, 100},
    {ScaleKind::symlog, -1e38F, 1e38F, 1},
};

TEST_CASE("shader: every scale, kind and unkind values", "[viewer][gl][shader]") {
  const HeadlessContext context;
  for (const ValueScale& scale : kScales)
    for (const Values values : {Values::signed_decades, Values::unkind})
      for (const bool mark : {false, true}) {
        HeatmapImage image = fitted_image({300, 300}, 301, 300);
        image.scale = usable(scale);
        image.ink.mark_beyond = mark;
        INFO(name_of(scale.kind) << " " << scale.low << " .. " << scale.high << ", marked " << mark
                                 << ", unkind " << (values == Values::unkind));
        check_same(image, visible_scene(image, values));
      }
}

TEST_CASE("shader: values all along the range, each colour map", "[viewer][gl][shader]") {
  const HeadlessContext context;
  for (const ColorMap map : kColorMaps.all())
    for (const ValueScale& scale : kScales) {
      HeatmapImage image = fitted_image({256, 256}, 256, 256);
      image.colors = map;
      image.scale = usable(scale);
      auto tile = std::make_shared<Tile>();
      tile->rows = tile->columns = 256;
      for (int i = 0; i < 65536; ++i)
        tile->values.push_back(image.scale.value_at(-0.1F + 1.2F * static_cast<float>(i) / 65535));
      const TileMap tiles{{{0, 0, 0}, tile}};
      INFO(name_of(map) << " " << name_of(scale.kind) << " " << scale.low << " .. " << scale.high);
      check_same(image, tiles);
      CHECK(colors_in(rendered(image, tiles)) > 150);
    }
}

TEST_CASE("shader: odd sizes, one cell, one row, one pixel", "[viewer][gl][shader]") {
  const HeadlessContext context;
  const MatrixSize sizes[] = {{1, 1}, {1, 1000}, {777, 1}, {255, 257}, {513, 300}, {6, 2}};
  const std::pair<int, int> pictures[] = {{1, 1}, {1, 300}, {257, 3}, {320, 199}};
  for (const MatrixSize size : sizes)
    for (const auto& picture : pictures)
      for (const bool square : {true, false}) {
        HeatmapImage image = fitted_image(size, picture.first, picture.second);
        image.camera = fitted(size, picture.first, picture.second, square);
        INFO(size.rows << " x " << size.columns << " in " << picture.first << " x " << picture.second);
        check_same(image, visible_scene(image, Values::unkind));
      }
}

TEST_CASE("shader: zoomed in, out and beyond the matrix", "[viewer][gl][shader]") {
  const HeadlessContext context;
  const MatrixSize size{1500, 1100};
  for (const double cells_per_pixel : {1.0 / 160, 0.13, 0.5, 1.0, 1.7, 2.0, 3.0, 7.9, 40.0})
    for (const double start : {-37.25, 0.0, 255.5, 900.0}) {
      HeatmapImage image = fitted_image(size, 333, 222);
      image.camera = {{start, cells_per_pixel}, {start / 2, cells_per_pixel * 0.8}};
      INFO(cells_per_pixel << " cells a pixel from " << start);
      check_same(image, visible_scene(image, Values::unkind));
    }
}

TEST_CASE("shader: 131072 x 131072, far from the origin", "[viewer][gl][shader]") {
  const HeadlessContext context;
  const MatrixSize size{131072, 131072};
  for (const double cells_per_pixel : {0.01, 1.0, 1.1, 5.0, 150.0, 700.0})
    for (const double start : {0.0, 65535.5, 130000.25, 131000.0}) {
      HeatmapImage image = fitted_image(size, 301, 200);
      image.camera = {{start, cells_per_pixel}, {131072 - 200 * cells_per_pixel * 0.9, cells_per_pixel}};
      INFO(cells_per_pixel << " cells a pixel from " << start);
      check_same(image, visible_scene(image, Values::signed_decades));
    }
}

TEST_CASE("shader: faded columns, of any kind of pixel", "[viewer][gl][shader]") {
  const HeadlessContext context;
  for (const double cells_per_pixel : {0.3, 1.0, 2.5}) {
    HeatmapImage image = fitted_image({400, 500}, 300, 200);
    image.camera = {{-20, cells_per_pixel}, {-10, cells_per_pixel}};
    image.faded_columns.assign(500, 0);
    for (std::size_t c = 0; c < 500; ++c) image.faded_columns[c] = c / 7 % 3 == 0 || c > 440 ? 1 : 0;
    check_same(image, visible_scene(image, Values::unkind));
    check_same(image, {});  // pending fades too
    image.faded_columns.resize(77);
    check_same(image, visible_scene(image, Values::unkind));
  }
}

TEST_CASE("shader: tiles above stand in for missing ones", "[viewer][gl][shader]") {
  const HeadlessContext context;
  const MatrixSize size{5000, 3000};
  for (const double cells_per_pixel : {0.4, 1.0, 2.0}) {
    HeatmapImage image = fitted_image(size, 700, 600);
    image.camera = {{700, cells_per_pixel}, {1900, cells_per_pixel}};
    TileMap tiles = visible_scene(image, Values::unkind);
    REQUIRE(tiles.size() >= 3);
    int i = 0;
    TileMap some;
    for (const auto& [key, tile] : tiles) {
      if (++i % 3 == 0) some[key] = tile;
      if (i % 3 == 1)
        for (TileKey above = key.parent(); above.level <= top_level(size); above = above.parent())
          if (above.level % 2 == 0 || i % 2 == 0) some[above] = random_tile(size, above, Values::unkind, 2);
    }
    some[{0, 0, 0}] = nullptr;
    check_same(image, some);
    check_same(image,
               {{{top_level(size), 0, 0}, random_tile(size, {top_level(size), 0, 0}, Values::unkind, 3)}});
    check_same(image, {});
  }
}

TEST_CASE("shader: an empty matrix is all outside", "[viewer][gl][shader]") {
  const HeadlessContext context;
  for (const MatrixSize size : {MatrixSize{0, 0}, MatrixSize{0, 10}, MatrixSize{10, 0}}) {
    HeatmapImage image = fitted_image({1, 1}, 33, 21);
    image.size = size;
    HeatmapRenderer renderer(std::make_shared<HeatmapProgram>(), kAllAtOnce);
    CHECK_FALSE(renderer.draw(image, {}));
    const std::vector<Rgb> pixels = renderer.pixels();
    CHECK(pixels.size() == 33U * 21U);
    CHECK(std::all_of(pixels.begin(), pixels.end(),
                      [&](const Rgb& pixel) { return pixel == image.ink.outside; }));
  }
}

TEST_CASE("shader: with one constant changed it is found out", "[viewer][gl][shader]") {
  const HeadlessContext context;
  HeatmapImage image = fitted_image({300, 300}, 300, 300);
  image.scale = usable({ScaleKind::symlog, -100, 100, 1e-3F});
  image.ink.mark_beyond = true;
  image.faded_columns.assign(300, 0);
  std::fill_n(image.faded_columns.begin(), 100, std::uint8_t{1});
  TileMap tiles = visible_scene(image, Values::unkind);
  REQUIRE(shader_difference(image, tiles).pixels == 0);

  const std::pair<const char*, const char*> changes[] = {
      {"t * float(KCOLORS - 1)", "t * float(KCOLORS - 80)"},
      {"0.693147181", "0.7"},
      {"(at.x + at.y)", "(at.x - at.y + 1000)"},
      {"> 0x7F800000u", "> 0x7FFFFFFFu"},
      {"0x80000000u", "0u"},
      {"0x7F7FFFFFu", "0x3F800000u"},
      {"value < low ? under", "value < high ? under"},
      {"value < 0.0 ? -size", "value < 0.0 ? size"},
      {"-size : size) - start", "-size : size) + start"},
      {"* KFADE", "* (1.0 - KFADE)"},
      {"<< KTILE_BITS", "<< (KTILE_BITS - 1)"},
      {"column >> 1", "column"},
      {"& 0x7FFFFFFFu", "& 0x7F7FFFFFu"},
  };
  for (const auto& change : changes) {
    std::string source = heatmap_fragment_source();
    const std::size_t at = source.find(change.first);
    REQUIRE(at != std::string::npos);
    source.replace(at, std::string(change.first).size(), change.second);
    INFO(change.first << " -> " << change.second);
    CHECK(shader_difference(image, tiles, source).pixels > 0);
  }
}

TEST_CASE("shader: one that does not compile says why", "[viewer][gl][shader]") {
  const HeadlessContext context;
  std::string message;
  try {
    const HeatmapProgram program("void main() { nonsense; }");
  } catch (const InputError& error) {
    message = error.what();
  }
  CHECK(message.find("fragment shader does not compile") != std::string::npos);
  CHECK(message.find("nonsense") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

}  // namespace
}  // namespace kvreplay::viewer
