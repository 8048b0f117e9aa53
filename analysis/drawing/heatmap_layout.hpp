#pragma once

#include "analysis/drawing/canvas.hpp"
#include "analysis/drawing/heatmap.hpp"

#include <string>
#include <vector>

namespace kvreplay::png {

inline constexpr Index kTextScale = 2;
inline constexpr Index kTick = 6;       ///< length of a tick
inline constexpr Index kNumberGap = 8;  ///< between a tick and its number

/// What the colours stand for.
struct ColorRange {
  double limit = 0;                                     ///< 0 where every finite value is 0
  bool above = false, below = false, no_value = false;  ///< there are values > limit, < -limit, NaN

  Rgb color(double value) const;
};

ColorRange color_range(const Heatmap& heatmap);

/// A number on the colour bar; `at` in [0, 1] counts from the top.
struct BarTick {
  double at = 0;
  std::string text;
};

/// Where everything goes; lines are wrapped to their place.
struct HeatmapLayout {
  Index width = 0, height = 0;  ///< of the picture, pixels
  Rect plot;                    ///< the cells
  Index cell_width = 1, cell_height = 1;
  Rect bar, no_value;  ///< colours; the swatch for NaN, empty where there are none
  std::vector<Index> x_ticks, y_ticks;
  std::vector<BarTick> bar_ticks;
  std::vector<std::string> title, x_label, y_label, value_label;
  Point title_at, x_label_at, y_label_at, value_label_at;  ///< middle of the first line; the title's left end

  Rect cell(Index row, Index column) const;
};

HeatmapLayout layout_of(const Heatmap& heatmap, const ColorRange& range);

}  // namespace kvreplay::png
