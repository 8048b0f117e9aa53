#pragma once

#include "viewer/widgets/plot.hpp"
#include "viewer/work/scatter.hpp"

#include <imgui.h>
#include <span>

namespace kvreplay::viewer {

/// Axis coordinates of a scatter plot as pixels of the Plot that shows it, and back.
class ScatterPixels {
 public:
  ScatterPixels(const Scatter& scatter, const Plot& plot);

  ImVec2 at(AxisPoint point) const;
  AxisPoint of(ImVec2 pixel) const;
  /// Coordinates a pixel.
  AxisPoint unit() const { return unit_; }
  AxisPoint low() const { return low_; }    ///< of the lower left corner
  AxisPoint high() const { return high_; }  ///< of the upper right corner

 private:
  ImVec2 corner_;  ///< the lower left one
  AxisPoint low_, high_, unit_;
};

/// How one class of points looks.
struct PointStyle {
  ImU32 color = 0;
  float opacity = 1;  ///< of a point alone; more of them in one place are denser
};

/// Draws the points in view. `classes` says by token which of `styles` a point has (empty: all the first);
/// later ones lie above earlier ones. Few points are discs. Many are counted in square cells two points wide,
/// each drawn once, in shades by count, in the last style where that has a point there, else in the most
/// frequent: a frame costs O(points) to count and O(cells) to draw.
void draw_points(const Plot& plot, const Scatter& scatter, std::span<const std::uint8_t> classes,
                 std::span<const PointStyle> styles);

}  // namespace kvreplay::viewer
