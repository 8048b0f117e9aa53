#pragma once

#include "analysis/drawing/color_map.hpp"
#include "analysis/results/figure_facts.hpp"

#include <span>
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

/// What suits a figure and all its values: [0, 1] for shares, [-1, 1] for correlations,
/// symmetric about 0 for what has signs, logarithmic where positive values span more than a factor of 30.
ColorScale color_scale(FigureScale scale, std::span<const double> values);

/// "#rrggbb".
std::string hex(png::Rgb color);
/// Whether text on this colour is to be light.
bool is_dark(png::Rgb color);

}  // namespace kvreplay::report
