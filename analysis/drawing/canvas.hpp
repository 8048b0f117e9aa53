#pragma once

#include "analysis/drawing/color_map.hpp"
#include "data/dump.hpp"

#include <cstddef>
#include <vector>

namespace kvreplay::png {

/// Pixels [x, x + width) x [y, y + height); y grows downwards.
struct Rect {
  Index x = 0, y = 0, width = 0, height = 0;
  Index right() const { return x + width; }
  Index bottom() const { return y + height; }
};

struct Point {
  double x = 0, y = 0;
};

/// An RGB raster, white at first. What lies outside it is not drawn.
class Canvas {
 public:
  Canvas(Index width, Index height);

  Index width() const { return width_; }
  Index height() const { return height_; }
  /// [height, width], row by row, top first.
  const std::vector<Rgb>& pixels() const { return pixels_; }

  /// `opacity` in [0, 1] mixes with what is there.
  void fill(const Rect& area, Rgb color, double opacity = 1);
  /// A line of 1 pixel around the outside of `area`.
  void frame(const Rect& area, Rgb color);
  /// A line with round ends, anti-aliased. Coordinates count from the top left corner of the top left pixel.
  void stroke(Point from, Point to, double thickness, Rgb color);

 private:
  void mix(Index x, Index y, Rgb color, double opacity);

  Index width_, height_;
  std::vector<Rgb> pixels_;
};

/// The picture as a PNG file's bytes, RGB of 8 bits.
std::vector<std::byte> png_bytes(const Canvas& canvas);

}  // namespace kvreplay::png
