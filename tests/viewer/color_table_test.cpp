#include "viewer/model/color_table.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

using kvreplay::Rgb;
using namespace kvreplay::viewer;

namespace {

/// CIE lightness of an sRGB colour, 0..100.
double lightness(Rgb color) {
  const auto linear = [](double level) {
    const double x = level / 255;
    return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  };
  const double y = 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
  return y > 216.0 / 24389 ? 116 * std::cbrt(y) - 16 : y * 24389.0 / 27;
}

int largest_step(Rgb one, Rgb other) {
  return std::max({std::abs(one.r - other.r), std::abs(one.g - other.g), std::abs(one.b - other.b)});
}

}  // namespace

TEST_CASE("colour maps are found by their names", "[viewer][color_table]") {
  for (const ColorMap map : kColorMaps.all()) CHECK(kColorMaps.named(name_of(map)) == map);
  CHECK(kColorMaps.named("RdBu") == ColorMap::rdbu);
  CHECK(kColorMaps.named("cool-warm") == ColorMap::cool_warm);
  CHECK_FALSE(kColorMaps.named("jet").has_value());
  CHECK_FALSE(kColorMaps.named("").has_value());
}

TEST_CASE("colour maps change evenly, sequential ones from dark to light", "[viewer][color_table]") {
  for (const ColorMap map : kColorMaps.all()) {
    const auto& table = color_table(map);
    INFO(name_of(map));
    const bool diverging = map == ColorMap::rdbu || map == ColorMap::cool_warm;
    for (std::size_t i = 1; i < table.size(); ++i) {
      CHECK(largest_step(table[i - 1], table[i]) <= 9);
      if (!diverging) CHECK(lightness(table[i]) > lightness(table[i - 1]) - 0.1);
    }
    if (!diverging) {
      CHECK(lightness(table[255]) - lightness(table[0]) > 70);
    } else {
      CHECK(table[0].b > table[0].r + 80);      // low is blue
      CHECK(table[255].r > table[255].b + 60);  // high is red
      const double middle = lightness(table[127]);
      CHECK(middle > 85);
      CHECK(largest_step(table[127], table[128]) <= 2);
      CHECK(std::abs(middle - lightness(table[128])) < 1);
    }
  }
}

TEST_CASE("colour maps have their authors' colours", "[viewer][color_table]") {
  // matplotlib 3.11: viridis, magma, cividis, RdBu_r at 0, 64, 128 and 255.
  const auto has = [](ColorMap map, Rgb at_0, Rgb at_64, Rgb at_128, Rgb at_255) {
    const auto& table = color_table(map);
    return table[0] == at_0 && table[64] == at_64 && table[128] == at_128 && table[255] == at_255;
  };
  CHECK(has(ColorMap::viridis, {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {253, 231, 37}));
  CHECK(has(ColorMap::magma, {0, 0, 4}, {81, 18, 124}, {183, 55, 121}, {252, 253, 191}));
  CHECK(has(ColorMap::cividis, {0, 34, 78}, {67, 78, 108}, {125, 124, 120}, {254, 232, 56}));
  CHECK(has(ColorMap::rdbu, {5, 48, 97}, {107, 172, 209}, {247, 246, 246}, {103, 0, 31}));
  // Moreland's table of 33 colours, every fourth, to a level.
  const Rgb moreland[] = {{59, 76, 192},   {98, 130, 234},  {141, 176, 254}, {184, 208, 249}, {221, 221, 221},
                          {245, 196, 173}, {244, 154, 123}, {222, 96, 77},   {180, 4, 38}};
  for (std::size_t i = 0; i < 9; ++i)
    CHECK(largest_step(color_of(ColorMap::cool_warm, static_cast<float>(i) / 8), moreland[i]) <= 1);
  // Even lightness: its middle is 50.
  for (std::size_t i = 0; i < 256; ++i)
    CHECK(lightness(color_table(ColorMap::grey)[i]) ==
          Approx(100.0 * static_cast<double>(i) / 255).margin(0.4));
}

TEST_CASE("reversed, the lowest value has the last colour", "[viewer][color_table]") {
  for (const ColorMap map : kColorMaps.all()) {
    const auto& table = color_table(map);
    CHECK(color_of({map, true}, 0) == table[255]);
    CHECK(color_of({map, true}, 1) == table[0]);
    CHECK(color_of({map, true}, 0.25F) == color_of(map, 0.75F));
    CHECK(color_of({map, true}, std::numeric_limits<float>::quiet_NaN()) == table[255]);
  }
}

TEST_CASE("colours between two entries are mixed", "[viewer][color_table]") {
  for (const ColorMap map : kColorMaps.all()) {
    const auto& table = color_table(map);
    for (std::size_t i = 0; i < table.size(); ++i)
      CHECK(color_of(map, static_cast<float>(i) / 255) == table[i]);
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(color_of(map, -infinity) == table[0]);
    CHECK(color_of(map, -0.01F) == table[0]);
    CHECK(color_of(map, 1.01F) == table[255]);
    CHECK(color_of(map, infinity) == table[255]);
    CHECK(color_of(map, std::numeric_limits<float>::quiet_NaN()) == table[0]);
  }
  const Rgb low = color_table(ColorMap::rdbu)[200], high = color_table(ColorMap::rdbu)[201];
  const Rgb middle = color_of(ColorMap::rdbu, 200.5F / 255);
  CHECK(std::abs(2 * middle.g - low.g - high.g) <= 1);
  CHECK(std::abs(2 * middle.b - low.b - high.b) <= 1);
}
