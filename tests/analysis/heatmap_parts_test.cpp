#include "analysis/drawing/heatmap_layout.hpp"
#include "analysis/drawing/text.hpp"
#include "analysis/drawing/ticks.hpp"
#include "tests/analysis/picture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <cmath>

using namespace kvreplay;
using namespace kvreplay::png;

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

Rgb at(const Canvas& canvas, Index x, Index y) { return canvas.pixels().at(y * canvas.width() + x); }

/// The pixels that are not white: the smallest rectangle around them.
Rect drawn(const Canvas& canvas) {
  Index left = canvas.width(), top = canvas.height(), right = 0, bottom = 0;
  for (Index y = 0; y < canvas.height(); ++y)
    for (Index x = 0; x < canvas.width(); ++x)
      if (at(canvas, x, y) != kWhite) {
        left = std::min(left, x), right = std::max(right, x + 1);
        top = std::min(top, y), bottom = std::max(bottom, y + 1);
      }
  return {left, top, right - left, bottom - top};
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
  CHECK(diverging_color(0) == kWhite);
  CHECK(diverging_color(7) == diverging_color(1));
  CHECK(diverging_color(-7) == diverging_color(-1));
  CHECK(diverging_color(std::nan("")) == kNoValue);
}

TEST_CASE("short numbers", "[heatmap]") {
  const std::vector<std::pair<double, std::string>> wanted = {
      {0, "0"},         {-0.0, "0"},        {1, "1"},          {-2.5, "-2.5"},   {12.345, "12.3"},
      {999.4, "999"},   {999.6, "1e3"},     {1200, "1.2e3"},   {-45e3, "-45e3"}, {0.0625, "0.0625"},
      {0.001, "0.001"}, {0.0005, "500e-6"}, {4.7e-8, "47e-9"}, {1e300, "1e300"}, {5e-324, "4.94e-324"},
      {123456, "123e3"}};
  for (const auto& [value, text] : wanted) CHECK(short_number(value) == text);
}

TEST_CASE("ticks stand at round indices, far enough apart", "[heatmap]") {
  using Indices = std::vector<Index>;
  CHECK(tick_indices(1, 640, 50) == Indices{0});
  CHECK(tick_indices(8, 80, 50) == Indices{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(tick_indices(64, 10, 50) == Indices{0, 8, 16, 24, 32, 40, 48, 56});
  CHECK(tick_indices(128, 5, 50) == Indices{0, 16, 32, 48, 64, 80, 96, 112});
  CHECK(tick_indices(300, 2, 50) == Indices{0, 50, 100, 150, 200, 250});
  CHECK(tick_indices(30, 21, 50) == Indices{0, 5, 10, 15, 20, 25});
  CHECK(tick_indices(30, 25, 50).at(1) == 2);
  CHECK(tick_indices(30, 6, 50).at(1) == 10);
}

TEST_CASE("lines break at spaces, and words only where they must", "[heatmap]") {
  using Lines = std::vector<std::string>;
  CHECK(wrap("", 100, 2).empty());
  CHECK(wrap("  two words ", 1000, 2) == Lines{"two words"});
  const Index width = text_width("abcd efgh", 2);
  CHECK(wrap("abcd efgh ijkl", width, 2) == Lines{"abcd efgh", "ijkl"});
  CHECK(wrap("abcd efgh ijkl", width - 1, 2) == Lines{"abcd", "efgh ijkl"});
  CHECK(wrap("abcdefghabcd", text_width("abcdefgh", 2), 2) == Lines{"abcdefgh", "abcd"});
  CHECK(wrap("ab", 1, 2) == Lines{"a", "b"});
  CHECK(wrap("\xc3\xa4\n\x7f", 1000, 2) == Lines{"? ?"});  // 2 bytes, one character
}

TEST_CASE("text is as wide as it says and turns without a change", "[heatmap]") {
  Canvas level(200, 200), upwards(200, 200);
  draw_text(level, {100, 100}, "H4 L.gh", {2, Align::center});
  draw_text(upwards, {100, 100}, "H4 L.gh", {2, Align::center, true});
  const Rect ink = drawn(level);
  CHECK(ink.width == text_width("H4 L.gh", 2));
  CHECK(ink.x == 100 - ink.width / 2);
  CHECK(ink.y == 100 - kCapHeight);
  int different = 0;
  for (Index y = 0; y < 200; ++y)
    for (Index x = 0; x < 200; ++x)
      different += std::abs(at(level, x, y).r - at(upwards, y, 199 - x).r) > 1 ? 1 : 0;
  CHECK(different == 0);

  Canvas left(200, 40), right(200, 40);
  draw_text(left, {100, 20}, "HH", {2, Align::left});
  draw_text(right, {100, 20}, "HH", {2, Align::right});
  CHECK(drawn(left).x == 100);
  CHECK(drawn(right).right() == 100);
}

TEST_CASE("a canvas draws nothing outside itself", "[heatmap]") {
  Canvas canvas(10, 10);
  canvas.fill({-5, -5, 7, 7}, kInk);
  canvas.fill({8, 8, 100, 100}, kInk);
  canvas.fill({20, 20, 5, 5}, kInk);
  canvas.stroke({-50, 5}, {50, 5}, 1, kInk);
  CHECK(at(canvas, 1, 1) == kInk);
  CHECK(at(canvas, 2, 2) == kWhite);
  CHECK(at(canvas, 8, 8) == kInk);
  CHECK(at(canvas, 9, 5) != kWhite);
}

TEST_CASE("no text reaches the margin, whatever the shape and the texts", "[heatmap]") {
  const test::TempDir folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "word" + std::to_string(i) + " ";
  text += std::string(200, 'w');
  for (const auto& [rows, columns] :
       std::vector<std::pair<Index, Index>>{{1, 1}, {64, 64}, {3, 200}, {200, 3}}) {
    Matrix<double> values = Matrix<double>::Constant(rows, columns, -1.23e-105);
    values(rows - 1, 0) = std::nan("");
    const Heatmap heatmap{text, text, text, text, values, 1.11e-105, {}, {}};
    const HeatmapLayout places = layout_of(heatmap, color_range(heatmap));
    write_png(folder / "a.png", heatmap);
    const test::Picture picture(folder / "a.png");
    const Index numbers =
        places.plot.x - 1 - kTick - kNumberGap - text_width(std::to_string(rows - 1), kTextScale);
    Index in_margin = 0, over_plot = 0, before_numbers = 0, elsewhere = 0;
    for (Index y = 0; y < picture.height; ++y) {
      for (Index x = 0; x < picture.width; ++x) {
        if (picture.at(x, y) == kWhite) continue;
        const bool margin = x < 16 || y < 16 || x >= picture.width - 16 || y >= picture.height - 16;
        const bool over =
            y >= places.plot.y - 10 && y < places.plot.y - 1 && x >= places.plot.x && x < places.bar.x;
        const bool before = x >= numbers - 8 && x < numbers && y >= places.plot.y && y < places.plot.bottom();
        ++(margin ? in_margin : over ? over_plot : before ? before_numbers : elsewhere);
      }
    }
    INFO(rows << " x " << columns);
    CHECK(in_margin == 0);
    CHECK(over_plot == 0);
    CHECK(before_numbers == 0);
  }
}
