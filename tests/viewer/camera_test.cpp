#include "viewer/model/camera.hpp"

#include "tests/support/catch.hpp"

#include <cmath>
#include <limits>
#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool finite(const Camera& camera) {
  return std::isfinite(camera.x.start) && std::isfinite(camera.y.start) && camera.x.cells_per_pixel > 0 &&
         camera.y.cells_per_pixel > 0 && std::isfinite(camera.x.cells_per_pixel) &&
         std::isfinite(camera.y.cells_per_pixel);
}

/// Whether the axis sees nothing but cells, or all of them in its middle.
bool in_bounds(const AxisView& axis, Index cells, int pixels) {
  const double end = static_cast<double>(cells), slack = 1e-9 * (end + 1);
  const double before = axis.start, after = axis.cell_at(pixels) - end;
  return (before >= -slack && after <= slack) || std::abs(before + after) <= slack;
}

}  // namespace

TEST_CASE("zooming keeps the cell under the pointer until a bound forbids it", "[viewer][camera]") {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> share(0, 1);
  int kept = 0;
  for (const MatrixSize size :
       {MatrixSize{4096, 4096}, MatrixSize{131072, 131072}, MatrixSize{300, 70000}, MatrixSize{7, 5}})
    for (int trial = 0; trial < 300; ++trial) {
      const int width = 100 + static_cast<int>(random() % 1800),
                height = 100 + static_cast<int>(random() % 1200);
      Camera camera = fitted(size, width, height, trial % 2 == 0);
      for (int step = 0; step < 8; ++step) {
        const double px = share(random) * width, py = share(random) * height;
        const double factor = std::exp2(4 * share(random) - 1.5);
        const Camera closer = zoomed(camera, size, width, height, px, py, factor, factor);
        REQUIRE(finite(closer));
        REQUIRE(in_bounds(closer.x, size.columns, width));
        REQUIRE(in_bounds(closer.y, size.rows, height));
        REQUIRE(clamped(closer, size, width, height) == closer);
        // The axis may move only where it would otherwise leave the matrix, or shows all of it.
        const auto anchored = [&](const AxisView& from, const AxisView& to, double pixel, Index cells,
                                  int pixels) {
          const double wanted = from.cell_at(pixel) - pixel * to.cells_per_pixel;
          const double spare = static_cast<double>(cells) - pixels * to.cells_per_pixel;
          if (spare <= 0 || wanted < 0 || wanted > spare) return false;
          INFO("pixel " << pixel << " of " << pixels << ", " << cells << " cells");
          CHECK(std::abs(to.cell_at(pixel) - from.cell_at(pixel)) < 1e-9 * static_cast<double>(cells));
          return true;
        };
        kept += anchored(camera.x, closer.x, px, size.columns, width) ? 1 : 0;
        kept += anchored(camera.y, closer.y, py, size.rows, height) ? 1 : 0;
        camera = closer;
      }
    }
  CHECK(kept > 5000);  // else the law was hardly tried
}

TEST_CASE("zooming by equal factors keeps the proportion of the axes", "[viewer][camera]") {
  const MatrixSize size{500, 90000};
  Camera camera = fitted(size, 1000, 600, false);
  const double proportion = camera.x.cells_per_pixel / camera.y.cells_per_pixel;
  for (const double factor : {3.0, 1e9, 0.1, 7.0, 1e-9}) {
    camera = zoomed(camera, size, 1000, 600, 300, 100, factor, factor);
    CHECK(camera.x.cells_per_pixel / camera.y.cells_per_pixel == Approx(proportion));
  }
  const Camera whole = fitted(size, 1000, 600, false);  // out as far as it goes
  CHECK(camera.x.cells_per_pixel == Approx(whole.x.cells_per_pixel));
  CHECK(camera.y.cell_at(600) == Approx(500));

  const Camera wide = zoomed(camera, size, 1000, 600, 300, 100, 4, 1);
  CHECK(wide.y == camera.y);
  CHECK(wide.x.cells_per_pixel == Approx(camera.x.cells_per_pixel / 4));
}

TEST_CASE("fit shows all cells, and one to one a cell a pixel", "[viewer][camera]") {
  const Camera square = fitted({4096, 2048}, 1000, 500, true);
  CHECK(square.x.cells_per_pixel == square.y.cells_per_pixel);
  CHECK(square.y.cells_per_pixel == Approx(4096 / 500.0));
  CHECK(square.y.start == Approx(0).margin(1e-9));
  CHECK(square.x.pixel_of(0) == Approx(1000 - square.x.pixel_of(2048)));
  const Camera filled = fitted({4096, 2048}, 1000, 500, false);
  CHECK(filled.x.cells_per_pixel == Approx(2.048));
  CHECK(filled.x.start == Approx(0).margin(1e-9));

  const Camera middle = one_to_one(square, {4096, 2048}, 1000, 500);
  CHECK(middle.x.cells_per_pixel == 1);
  CHECK(middle.y.cells_per_pixel == 1);
  CHECK(middle.x.cell_at(500) == Approx(1024));
  CHECK(middle.y.cell_at(250) == Approx(2048));
  // A small matrix, too: in the middle of the panel.
  const Camera small = one_to_one(fitted({6, 2}, 800, 600, true), {6, 2}, 800, 600);
  CHECK(small.x.cells_per_pixel == 1);
  CHECK(small.x.pixel_of(0) == 399);
  CHECK(small.y.pixel_of(6) == 303);
  // Cells of few layers and heads do not grow beyond measure.
  CHECK(fitted({2, 2}, 2000, 2000, true).x.cells_per_pixel == Approx(1 / kMostPixelsPerCell));
}

TEST_CASE("panning stays within the matrix", "[viewer][camera]") {
  const MatrixSize size{4096, 4096};
  const Camera start = one_to_one(fitted(size, 1000, 500, true), size, 1000, 500);
  const Camera moved = panned(start, size, 1000, 500, -30, 12);
  CHECK(moved.x.start == start.x.start + 30);
  CHECK(moved.y.start == start.y.start - 12);
  CHECK(panned(start, size, 1000, 500, 1e9, 1e9).x.start == 0);
  CHECK(panned(start, size, 1000, 500, -1e9, 0).x.start == 3096);
  const Camera whole = fitted(size, 1000, 500, true);
  CHECK(panned(whole, size, 1000, 500, 77, 5) == whole);
}

TEST_CASE("resizing keeps the part in view and comes back", "[viewer][camera]") {
  const MatrixSize size{4096, 8192};
  CHECK(resized(fitted(size, 900, 500, true), size, 900, 500, 400, 1100, true) ==
        fitted(size, 400, 1100, true));
  CHECK(resized(fitted(size, 900, 500, false), size, 900, 500, 400, 1100, false) ==
        fitted(size, 400, 1100, false));

  Camera close = zoomed(fitted(size, 900, 500, true), size, 900, 500, 200, 300, 9, 9);
  const Camera other = resized(close, size, 900, 500, 500, 900, true);
  CHECK(other.x.cells_per_pixel == Approx(other.y.cells_per_pixel));
  CHECK(other.x.cell_at(250) == Approx(close.x.cell_at(450)));
  CHECK(other.y.cell_at(450) == Approx(close.y.cell_at(250)));
  const Camera back = resized(other, size, 500, 900, 900, 500, true);
  CHECK(back.x.start == Approx(close.x.start));
  CHECK(back.y.cells_per_pixel == Approx(close.y.cells_per_pixel));

  close = zoomed(fitted(size, 900, 500, false), size, 900, 500, 200, 300, 9, 5);
  const Camera same_part = resized(close, size, 900, 500, 333, 777, false);
  CHECK(same_part.x.start == Approx(close.x.start));
  CHECK(same_part.x.cell_at(333) == Approx(close.x.cell_at(900)));
  CHECK(same_part.y.cell_at(777) == Approx(close.y.cell_at(500)));
  CHECK(resized(close, size, 0, 0, 333, 777, false) == fitted(size, 333, 777, false));
}

TEST_CASE("showing a cell moves no further than it takes", "[viewer][camera]") {
  const MatrixSize size{4096, 4096};
  const Camera start = one_to_one(fitted(size, 1000, 500, true), size, 1000, 500);
  const Camera there = showing(start, size, 1000, 500, 100, 4095);
  CHECK(there.y.start == 100);
  CHECK(there.x.start == 3096);
  CHECK(showing(there, size, 1000, 500, 599, 3500) == there);
  CHECK(showing(there, size, 1000, 500, 600, 3500).y.start == 101);
}

TEST_CASE("cameras survive what is no camera", "[viewer][camera]") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const MatrixSize size :
       {MatrixSize{0, 0}, MatrixSize{1, 1}, MatrixSize{1, 131072}, MatrixSize{131072, 131072}})
    for (const auto& [width, height] : {std::pair{0, 0}, {1, 1}, {1, 900}, {1280, 800}}) {
      const Camera fit = fitted(size, width, height, true);
      CHECK(finite(fit));
      for (const double bad : {kNaN, infinity, -infinity, 0.0, -1.0}) {
        CHECK(finite(clamped({{bad, bad}, {bad, bad}}, size, width, height)));
        CHECK(finite(zoomed(fit, size, width, height, 1, 1, bad, bad)));
        CHECK(zoomed(fit, size, width, height, 1, 1, bad, bad) == clamped(fit, size, width, height));
        CHECK(finite(panned(fit, size, width, height, bad, bad)));
        CHECK(finite(one_to_one({{bad, bad}, {bad, bad}}, size, width, height)));
        CHECK(finite(resized({{bad, bad}, {bad, bad}}, size, 3, 4, width, height, true)));
        CHECK(finite(showing({{bad, bad}, {bad, bad}}, size, width, height, 0, 0)));
      }
    }
}
