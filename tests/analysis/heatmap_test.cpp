#include "data/atomic_file.hpp"
#include "tests/analysis/picture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <cmath>
#include <limits>

using namespace kvreplay;

namespace {

double oklab_lightness(Rgb color) {
  const auto linear = [](std::uint8_t byte) {
    const double x = byte / 255.0;
    return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  };
  const double r = linear(color.r), g = linear(color.g), b = linear(color.b);
  return 0.2104542553 * std::cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) +
         0.7936177850 * std::cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) -
         0.0040720468 * std::cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
}

}  // namespace

TEST_CASE("red and blue are equally light, and lightness falls evenly", "[heatmap]") {
  for (int i = 0; i <= 100; ++i) {
    const Rgb red = diverging_color(i / 100.0), blue = diverging_color(-i / 100.0);
    INFO("t = " << i / 100.0);
    // One step of 8 bits is about 0.004.
    CHECK(std::abs(oklab_lightness(red) - oklab_lightness(blue)) < 0.006);
    CHECK(std::abs(oklab_lightness(red) - (1 - 0.6 * i / 100.0)) < 0.006);
    CHECK((i < 5 || (red.r > red.b + 5 && blue.b > blue.r + 5)));
  }
  CHECK(diverging_color(0) == kWhiteColor);
  CHECK(diverging_color(7) == diverging_color(1));
  CHECK(diverging_color(-7) == diverging_color(-1));
  CHECK(diverging_color(std::nan("")) == kNoValueColor);
}

TEST_CASE("a picture of a matrix has a square of its colour for every entry", "[heatmap]") {
  const test::TempDir dir;
  Matrix<double> values(2, 3);
  values << 1, -0.5, 0, std::nan(""), 9, -9;
  write_file(dir / "map.png", heatmap_png(values, 2, 4));
  const test::Picture picture(dir / "map.png");
  REQUIRE(picture.width == 12);
  REQUIRE(picture.height == 8);
  const Rgb expected[2][3] = {{diverging_color(0.5), diverging_color(-0.25), kWhiteColor},
                              {kNoValueColor, diverging_color(1), diverging_color(-1)}};
  for (Index y = 0; y < 8; ++y)
    for (Index x = 0; x < 12; ++x) CHECK(picture.at(x, y) == expected[y / 4][x / 4]);
  CHECK(heatmap_png(values, 2, 4) == heatmap_png(values, 2, 4));
}

TEST_CASE("where nothing interacts the picture is white, and what has no value grey", "[heatmap]") {
  const test::TempDir dir;
  Matrix<double> values = Matrix<double>::Zero(1, 2);
  values(0, 1) = std::nan("");
  write_file(dir / "map.png", heatmap_png(values, 0));
  const test::Picture picture(dir / "map.png");
  CHECK(picture.at(0, 0) == kWhiteColor);
  CHECK(picture.at(1, 0) == kNoValueColor);
}
