#pragma once

#include "data/dump.hpp"

namespace kvreplay::viewer {

/// Cells of a matrix.
struct MatrixSize {
  Index rows = 0, columns = 0;
  bool operator==(const MatrixSize&) const = default;
};

/// One axis of a view: which part of `cells` cells is seen through `pixels` pixels.
struct AxisView {
  double start = 0;            ///< cell coordinate at the first pixel's left edge; cell c spans [c, c + 1)
  double cells_per_pixel = 1;  ///< > 0
  double cell_at(double pixel) const { return start + pixel * cells_per_pixel; }
  double pixel_of(double cell) const { return (cell - start) / cells_per_pixel; }
  bool operator==(const AxisView&) const = default;
};

/// Visible part of a matrix in a heatmap. x runs over columns; y runs over rows, downwards.
struct Camera {
  AxisView x, y;
  bool operator==(const Camera&) const = default;
};

/// The most pixels a cell may take.
inline constexpr double kMostPixelsPerCell = 160;

/// The whole matrix in width x height pixels. `square`: equal scales on both axes, the matrix in the middle;
/// else each axis fills its side.
Camera fitted(MatrixSize size, int width, int height, bool square);
/// One cell a pixel, the cell in the middle of the view staying there.
Camera one_to_one(const Camera& camera, MatrixSize size, int width, int height);
/// Zooms by a factor (> 1: closer) so that the cell under the pixel (px, py) stays under it, unless the
/// bounds of the view forbid it. Equal factors keep the axes' proportion: both stop where one must. An axis
/// with factor 1 stays as it is; a factor that is not positive and finite counts as 1.
Camera zoomed(const Camera& camera, MatrixSize size, int width, int height, double px, double py,
              double factor_x, double factor_y);
/// Moves the content by (dx, dy) pixels.
Camera panned(const Camera& camera, MatrixSize size, int width, int height, double dx, double dy);
/// The part of the matrix that was seen, as far as it goes, after the panel changed its size. The whole stays
/// the whole. `square`: the axes' proportion stays, and as many square cells are seen as the panel's area
/// allows.
Camera resized(const Camera& camera, MatrixSize size, int old_width, int old_height, int width, int height,
               bool square);
/// Moves the view as little as it takes to bring a cell into it.
Camera showing(const Camera& camera, MatrixSize size, int width, int height, Index row, Index column);
/// The nearest camera within bounds: a cell takes at most kMostPixelsPerCell pixels, and at least one or what
/// it takes where all of the matrix is seen; an axis that shows more than its cells is centred; else no pixel
/// lies outside the matrix. Never NaN.
Camera clamped(Camera camera, MatrixSize size, int width, int height);

}  // namespace kvreplay::viewer
