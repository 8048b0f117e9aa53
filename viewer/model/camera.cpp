#include "viewer/model/camera.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr double kClosest = 1 / kMostPixelsPerCell;

double length(Index cells) { return static_cast<double>(std::max(cells, Index{0})); }

/// Cells per pixel at which an axis fills its side.
double filling(Index cells, int pixels) { return std::max(length(cells), 1.0) / std::max(pixels, 1); }

/// The most cells per pixel: where all is seen on both axes, but no cell takes more than a pixel for it.
double farthest(MatrixSize size, int width, int height) {
  return std::max({filling(size.columns, width), filling(size.rows, height), 1.0});
}

AxisView clamped_axis(AxisView axis, Index cells, int pixels, double most) {
  if (!std::isfinite(axis.cells_per_pixel) || axis.cells_per_pixel <= 0)
    axis.cells_per_pixel = filling(cells, pixels);
  axis.cells_per_pixel = std::clamp(axis.cells_per_pixel, kClosest, most);
  const double spare = length(cells) - std::max(pixels, 1) * axis.cells_per_pixel;
  if (spare <= 0)
    axis.start = spare / 2;
  else
    axis.start = std::isfinite(axis.start) ? std::clamp(axis.start, 0.0, spare) : 0;
  return axis;
}

AxisView zoomed_axis(const AxisView& axis, double pixel, double factor, double most) {
  const double cells_per_pixel = std::clamp(axis.cells_per_pixel / factor, kClosest, most);
  return {axis.cell_at(pixel) - pixel * cells_per_pixel, cells_per_pixel};
}

bool sees_all(const AxisView& axis, Index cells, int pixels) {
  const double slack = 1e-6 * length(cells);
  return axis.cell_at(0) <= slack && axis.cell_at(pixels) >= length(cells) - slack;
}

/// The axis at another scale about its middle.
AxisView scaled_axis(const AxisView& axis, int old_pixels, int pixels, double cells_per_pixel) {
  return {axis.cell_at(old_pixels / 2.0) - pixels / 2.0 * cells_per_pixel, cells_per_pixel};
}

double shown_start(const AxisView& axis, int pixels, Index cell) {
  const double at = static_cast<double>(cell), seen = pixels * axis.cells_per_pixel;
  return std::min(std::max(axis.start, at + 1 - seen), at);
}

}  // namespace

Camera clamped(Camera camera, MatrixSize size, int width, int height) {
  const double most = farthest(size, width, height);
  camera.x = clamped_axis(camera.x, size.columns, width, most);
  camera.y = clamped_axis(camera.y, size.rows, height, most);
  return camera;
}

Camera fitted(MatrixSize size, int width, int height, bool square) {
  Camera camera;
  camera.x.cells_per_pixel = filling(size.columns, width);
  camera.y.cells_per_pixel = filling(size.rows, height);
  if (square)
    camera.x.cells_per_pixel = camera.y.cells_per_pixel =
        std::max(camera.x.cells_per_pixel, camera.y.cells_per_pixel);
  return clamped(camera, size, width, height);
}

Camera one_to_one(const Camera& camera, MatrixSize size, int width, int height) {
  return clamped({scaled_axis(camera.x, width, width, 1), scaled_axis(camera.y, height, height, 1)}, size,
                 width, height);
}

Camera zoomed(const Camera& camera, MatrixSize size, int width, int height, double px, double py,
              double factor_x, double factor_y) {
  const Camera from = clamped(camera, size, width, height);
  const double most = farthest(size, width, height);
  const auto usable = [](double factor) { return std::isfinite(factor) && factor > 0 ? factor : 1.0; };
  factor_x = usable(factor_x);
  factor_y = usable(factor_y);
  if (factor_x == factor_y) {
    const double low = std::min(from.x.cells_per_pixel, from.y.cells_per_pixel);
    const double high = std::max(from.x.cells_per_pixel, from.y.cells_per_pixel);
    factor_x = factor_y = std::clamp(factor_x, std::min(high / most, 1.0), std::max(low / kClosest, 1.0));
  }
  return clamped({zoomed_axis(from.x, px, factor_x, most), zoomed_axis(from.y, py, factor_y, most)}, size,
                 width, height);
}

Camera panned(const Camera& camera, MatrixSize size, int width, int height, double dx, double dy) {
  Camera moved = camera;
  moved.x.start -= dx * camera.x.cells_per_pixel;
  moved.y.start -= dy * camera.y.cells_per_pixel;
  return clamped(moved, size, width, height);
}

Camera resized(const Camera& camera, MatrixSize size, int old_width, int old_height, int width, int height,
               bool square) {
  if (old_width <= 0 || old_height <= 0) return fitted(size, width, height, square);
  if (sees_all(camera.x, size.columns, old_width) && sees_all(camera.y, size.rows, old_height))
    return fitted(size, width, height, square);
  double scale_x = static_cast<double>(old_width) / std::max(width, 1);
  double scale_y = static_cast<double>(old_height) / std::max(height, 1);
  // By area: going there and back, or there in steps, ends at the same scale.
  if (square) scale_x = scale_y = std::sqrt(scale_x * scale_y);
  return clamped({scaled_axis(camera.x, old_width, width, camera.x.cells_per_pixel * scale_x),
                  scaled_axis(camera.y, old_height, height, camera.y.cells_per_pixel * scale_y)},
                 size, width, height);
}

Camera showing(const Camera& camera, MatrixSize size, int width, int height, Index row, Index column) {
  Camera moved = clamped(camera, size, width, height);
  moved.x.start = shown_start(moved.x, width, column);
  moved.y.start = shown_start(moved.y, height, row);
  return clamped(moved, size, width, height);
}

}  // namespace kvreplay::viewer
