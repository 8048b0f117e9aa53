#include "analysis/drawing/heatmap.hpp"

#include "analysis/drawing/heatmap_layout.hpp"
#include "data/error.hpp"
#include "tests/analysis/picture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <limits>

using namespace kvreplay;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

png::HeatmapLayout layout(const Heatmap& heatmap) {
  return png::layout_of(heatmap, png::color_range(heatmap));
}

/// The colour at the centre of a cell in the file that write_png makes.
struct Drawn {
  const test::TempDir folder;
  const png::HeatmapLayout places;
  const test::Picture picture;

  explicit Drawn(const Heatmap& heatmap)
      : places(layout(heatmap)), picture((write_png(folder / "a.png", heatmap), folder / "a.png")) {}
  png::Rgb at(Index row, Index column) const {
    const png::Rect cell = places.cell(row, column);
    return picture.at(cell.x + cell.width / 2, cell.y + cell.height / 2);
  }
};

Heatmap heatmap_of(Matrix<double> values, double limit = 0) {
  return {"title", "x label", "y label", "value", std::move(values), limit, {}, {}};
}

Matrix<double> row_of(std::initializer_list<double> values) {
  Matrix<double> row(1, std::ssize(values));
  std::copy(values.begin(), values.end(), row.data());
  return row;
}

const png::Rgb kRed = png::diverging_color(1), kBlue = png::diverging_color(-1);

}  // namespace

TEST_CASE("a cell has the colour of its value, row 0 at the top", "[heatmap]") {
  Matrix<double> values(2, 3);
  values << 0, 4, -4, 2, -2, 1;
  const Drawn drawn(heatmap_of(values));
  CHECK(drawn.at(0, 0) == png::kWhite);
  CHECK(drawn.at(0, 1) == kRed);
  CHECK(drawn.at(0, 2) == kBlue);
  CHECK(drawn.at(1, 0) == png::diverging_color(0.5));
  CHECK(drawn.at(1, 1) == png::diverging_color(-0.5));
  CHECK(drawn.at(1, 2) == png::diverging_color(0.25));
  const png::Rect first = drawn.places.cell(0, 0), last = drawn.places.cell(1, 2);
  CHECK((first.x < last.x && first.y < last.y));
  // The cells fill the frame to its last pixel.
  CHECK(drawn.picture.at(last.right() - 1, last.bottom() - 1) == png::diverging_color(0.25));
  CHECK(drawn.picture.at(last.right(), last.bottom() - 1) == png::kInk);
  CHECK(drawn.picture.at(last.right() - 1, last.bottom()) == png::kInk);
}

TEST_CASE("the sizes of a picture", "[heatmap]") {
  for (const Index d : {1, 8, 64, 128, 300}) {
    const Drawn drawn(heatmap_of(Matrix<double>::Constant(d, d, -1.0)));
    INFO("d = " << d);
    CHECK(drawn.picture.width == drawn.places.width);
    CHECK(drawn.picture.height == drawn.places.height);
    CHECK((drawn.places.plot.width >= 512 && drawn.places.plot.width <= 768));
    CHECK(drawn.places.plot.width == d * drawn.places.cell_width);
    CHECK(drawn.places.plot.height == drawn.places.plot.width);
    CHECK(drawn.at(d - 1, d - 1) == kBlue);
  }
  CHECK(layout(heatmap_of(Matrix<double>::Zero(2, 900))).plot.width == 900);
}

TEST_CASE("values beyond the limit are clipped, and the bar says so", "[heatmap]") {
  const auto ends = [](const Heatmap& heatmap) {
    const auto ticks = layout(heatmap).bar_ticks;
    return ticks.front().text + " | " + ticks.back().text;
  };
  const Heatmap clipped = heatmap_of(row_of({3000, 1500, -3000, 750}), 1500);
  const Drawn drawn(clipped);
  CHECK(drawn.at(0, 0) == kRed);
  CHECK(drawn.at(0, 1) == kRed);
  CHECK(drawn.at(0, 2) == kBlue);
  CHECK(drawn.at(0, 3) == png::diverging_color(0.5));
  CHECK(ends(clipped) == ">= 1.5e3 | <= -1.5e3");
  CHECK(ends(heatmap_of(row_of({1500, -3000}), 1500)) == "1.5e3 | <= -1.5e3");
  CHECK(ends(heatmap_of(row_of({1, kNaN}), 1500)) == "1.5e3 | -1.5e3");
  CHECK(ends(heatmap_of(row_of({-2, 1}))) == "2 | -2");
  CHECK(ends(heatmap_of(row_of({-2, kInfinity}))) == ">= 2 | -2");
  CHECK(ends(heatmap_of(row_of({0, kInfinity}))) == ">= 1 | -1");
}

TEST_CASE("the colour bar runs from +limit at the top to -limit", "[heatmap]") {
  const Drawn drawn(heatmap_of(row_of({1, -1, 0.25, kNaN})));
  const png::Rect& bar = drawn.places.bar;
  CHECK(drawn.picture.at(bar.x, bar.y) == kRed);
  CHECK(drawn.picture.at(bar.right() - 1, bar.bottom() - 1) == kBlue);
  CHECK(drawn.places.bar_ticks.size() == 5);
  const png::Rect& swatch = drawn.places.no_value;
  CHECK(swatch.y > bar.bottom());
  CHECK(drawn.picture.at(swatch.x, swatch.y) == png::kNoValue);
  CHECK(layout(heatmap_of(row_of({1, -1}))).no_value.width == 0);
}

TEST_CASE("values that are no ordinary numbers", "[heatmap]") {
  const Drawn odd(heatmap_of(row_of({kNaN, kInfinity, -kInfinity, 0.5, 1, -0.0})));
  CHECK(odd.at(0, 0) == png::kNoValue);
  CHECK(odd.at(0, 1) == kRed);
  CHECK(odd.at(0, 2) == kBlue);
  CHECK(odd.at(0, 3) == png::diverging_color(0.5));
  CHECK(odd.at(0, 5) == png::kWhite);
  const Drawn zero(heatmap_of(Matrix<double>::Zero(3, 3)));
  CHECK(zero.at(1, 1) == png::kWhite);
  CHECK(zero.places.bar_ticks.size() == 1);
  for (const double scale : {1e308, 1e-310}) {
    const Drawn extreme(heatmap_of(row_of({scale, -scale, scale / 4})));
    CHECK(extreme.at(0, 0) == kRed);
    CHECK(extreme.at(0, 1) == kBlue);
    CHECK(extreme.at(0, 2) == png::diverging_color(0.25));
  }
  const Drawn nothing(heatmap_of(Matrix<double>::Constant(2, 2, kNaN)));
  CHECK(nothing.at(1, 1) == png::kNoValue);
}

TEST_CASE("marks stand before their column and row", "[heatmap]") {
  Heatmap heatmap = heatmap_of(Matrix<double>::Zero(4, 8));
  heatmap.x_marks = {5, 0, 8, -3};  // those at the frame and beyond are not drawn
  heatmap.y_marks = {3};
  const Drawn drawn(heatmap);
  const png::Rect cell = drawn.places.cell(3, 5);
  CHECK(drawn.picture.at(cell.x, cell.y + 10).r < 100);
  CHECK(drawn.picture.at(cell.x + 10, cell.y).r < 100);
  CHECK(drawn.picture.at(cell.x - 1, cell.y + 10) == png::kWhite);
  CHECK(drawn.picture.at(cell.x + 1, cell.y + 10) == png::kWhite);
  CHECK(drawn.picture.at(drawn.places.plot.x, cell.y + 10) == png::kWhite);
}

TEST_CASE("the same heatmap gives the same bytes", "[heatmap]") {
  const test::TempDir folder;
  Heatmap heatmap = heatmap_of(Matrix<double>::Random(20, 30));
  write_png(folder / "a.png", heatmap);
  write_png(folder / "b.png", heatmap);
  const std::string bytes = test::file_text(folder / "a.png");
  CHECK(bytes == test::file_text(folder / "b.png"));
  CHECK(bytes.find("tIME") == std::string::npos);
  CHECK(bytes.find("tEXt") == std::string::npos);
  heatmap.values(19, 29) = -heatmap.values(19, 29);
  write_png(folder / "b.png", heatmap);
  CHECK(bytes != test::file_text(folder / "b.png"));
}

TEST_CASE("what cannot be drawn or written leaves nothing behind", "[heatmap]") {
  const test::TempDir folder;
  const Heatmap good = heatmap_of(row_of({1, 2}));
  std::filesystem::create_directory(folder / "taken.png");
  CHECK_THROWS_AS(write_png(folder / "taken.png", good), InputError);
  CHECK_THROWS_AS(write_png(std::filesystem::path("/proc/no/such/folder.png"), good), InputError);
  CHECK_THROWS_AS(write_png(folder / "a.png", heatmap_of(Matrix<double>(0, 3))), InputError);
  CHECK_THROWS_AS(write_png(folder / "a.png", heatmap_of(Matrix<double>(3, 0))), InputError);
  CHECK_THROWS_AS(write_png(folder / "a.png", heatmap_of(Matrix<double>::Zero(1, 8193))), InputError);
  for (const double limit : {-1.0, kNaN, kInfinity})
    CHECK_THROWS_AS(write_png(folder / "a.png", heatmap_of(row_of({1}), limit)), InputError);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  write_png(folder / "new" / "a.png", good);
  CHECK(std::filesystem::exists(folder / "new" / "a.png"));
}
