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
/// Whether text on this colour is to be light.
bool is_dark(png::Rgb color);

}  // namespace kvreplay::report
