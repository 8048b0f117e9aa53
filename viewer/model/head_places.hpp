#pragma once

#include "viewer/model/layout.hpp"

namespace kvreplay::viewer {

/// Sizes, in pixels, of the decoration around the map of all heads and of the parts next to it.
struct HeadPlaceSizes {
  float around_x = 0, around_y = 0;  ///< what axes and the colour bar take of the map's width and height
  Extent table, plot;                ///< the least that each is of use with
  float gap = 0;
  float point = 1;  ///< pixels a point
};

/// Where the map of all heads stands, and the table and the plot of the same heads, within a room that begins
/// at (0, 0). Of table and plot each may be empty (width 0) where there is no room for both.
struct HeadPlaces {
  bool transposed = false;  ///< layers from left to right
  bool square = true;  ///< cells are; else they are drawn as wide or as high as it takes to point at them
  float cell = 0;      ///< the shorter side of one, pixels
  Area map, table, plot;
  float height = 0;  ///< of all of it: more than the room's where that is too low, and then it scrolls
};

/// So that cells are as large as they can be, up to a size that goes with the room; among equal ones, so that
/// table and plot both have a place. Of the two the plot gives way to the table unless `plot_first`.
HeadPlaces head_places(Index layers, Index kv_heads, Extent room, const HeadPlaceSizes& sizes,
                       bool plot_first);

}  // namespace kvreplay::viewer
