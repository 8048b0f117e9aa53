#pragma once

#include "viewer/model/layout.hpp"

namespace kvreplay::viewer {

/// Sizes, in pixels, of the decoration around the map of all heads and of the parts next to it.
struct HeadPlaceSizes {
  float around_x = 0, around_y = 0;  ///< Room of axes and colour bar, taken from the map's width and height.
  Extent table, plot;                ///< the least that each is of use with
  float gap = 0;
  float point = 1;  ///< pixels a point
};

/// Areas of the map of all heads, and of the table and the plot of these heads, within a room that begins at
/// (0, 0). Table and plot are each empty (width 0) if there is no room for both.
struct HeadPlaces {
  bool transposed = false;  ///< layers from left to right
  bool square = true;  ///< cells are; else they are drawn as wide or as high as it takes to point at them
  float cell = 0;      ///< the shorter side of one, pixels
  Area map, table, plot;
  float height = 0;  ///< of all of it: more than the room's where that is too low, and then it scrolls
};

/// Makes the cells as large as possible, up to a size that depends on the room. Table and plot both get a
/// place unless cells without one of them would be more than 1.6 times as large. The plot is then dropped, or
/// the table if `plot_first`.
HeadPlaces head_places(Index layers, Index kv_heads, Extent room, const HeadPlaceSizes& sizes,
                       bool plot_first);

}  // namespace kvreplay::viewer
