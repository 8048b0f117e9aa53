#pragma once

#include "analysis/drawing/color_map.hpp"

#include <string>

namespace kvreplay::report {

/// Which colour a value has. Sequential: light to dark from `low` to `high`. Diverging: white at 0 and equal
/// lengths to both sides.
struct ColorScale {
  bool diverging = false;
  bool log = false;  ///< sequential only
  double low = 0, high = 1;
  bool flipped = false;  ///< blue at the upper end: where larger is better

  /// In [0, 1]; NaN for NaN.
  double at(double value) const;
  png::Rgb color(double value) const;
};

/// "#rrggbb".
std::string hex(png::Rgb color);
/// Whether white on this colour has more contrast than black (WCAG 2: at a luminance of 0.179 both
/// have 4.58).
bool is_dark(png::Rgb color);

}  // namespace kvreplay::report
