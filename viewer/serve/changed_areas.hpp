#pragma once

#include "analysis/drawing/color_scale.hpp"

#include <span>
#include <vector>

namespace kvreplay::viewer {

struct PixelArea {
  int x = 0, y = 0, width = 0, height = 0;
  bool operator==(const PixelArea&) const = default;
};

/// Rectangles that cover every pixel in which two pictures [height, width] differ, disjoint, top first; all
/// of it where `before` has another size. Changes near each other share one.
std::vector<PixelArea> changed_areas(std::span<const Rgb> before, std::span<const Rgb> now, int width,
                                     int height);

/// An area of a picture [height, width] as a picture of its own.
std::vector<Rgb> cut_out(std::span<const Rgb> picture, int width, const PixelArea& area);

}  // namespace kvreplay::viewer
