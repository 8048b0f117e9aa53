#pragma once

#include "viewer/model/camera.hpp"
#include "viewer/model/color_table.hpp"
#include "viewer/model/key.hpp"
#include "viewer/model/tiles.hpp"
#include "viewer/model/value_scale.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

// Description of a heatmap's picture; viewer/gl/heatmap_renderer.hpp turns it into pixels.

namespace kvreplay::viewer {

/// The colours besides the colour map.
struct HeatmapInk {
  Rgb outside{32, 33, 36};                       ///< beyond the matrix
  Rgb pending{52, 54, 58};                       ///< not computed yet
  Rgb hatch_a{60, 62, 66}, hatch_b{78, 80, 85};  ///< NaN: stripes
  Rgb under{38, 198, 218};                       ///< value < scale.low, -infinity among them
  Rgb over{255, 64, 200};                        ///< value > scale.high, +infinity among them
  bool mark_beyond = false;                      ///< else values beyond the range take the colour of its end
  bool operator==(const HeatmapInk&) const = default;
};

/// Everything that a picture depends on besides the tiles' values.
struct HeatmapImage {
  MatrixSize size;
  Camera camera;
  int width = 0, height = 0;  ///< pixels
  Coloring colors;
  ValueScale scale;
  HeatmapInk ink;
  /// Columns (tokens) that are faded towards ink.outside, [columns], 1 where faded (evicted), or empty. A
  /// pixel is faded, whatever its colour, if all columns of the texel that it shows are.
  std::vector<std::uint8_t> faded_columns;
  bool operator==(const HeatmapImage&) const = default;
};

/// Share of ink.outside in a faded pixel: color + (outside - color) * kFade.
inline constexpr float kFade = 0.72F;
/// Hatching: stripe = ((x + y) / kHatchWidth) % 2, x and y in pixels of the picture.
inline constexpr int kHatchWidth = 4;

/// For every pixel along one axis the texel that it shows at `level`: the one of the cell under the pixel's
/// middle; -1 outside the matrix. The last texel may be so narrow that no middle meets it (the newest tokens
/// of a matrix seen whole): where the matrix ends in view it is shown all the same, its neighbours giving
/// way.
std::vector<std::int32_t> axis_texels(const AxisView& axis, int pixels, Index cells, int level);
/// 1 for each pixel that is faded: [width].
std::vector<std::uint8_t> faded_pixels(const HeatmapImage& image);

/// Settings that heatmaps of several panels share.
struct HeatmapLinks {
  bool unfinished = false;  ///< a heatmap needs another frame for what it could not bring to the screen yet
  bool joined = false;
  struct Shared {
    AxisView axis;
    int pixels = 1;
  };
  std::map<Key, Shared> columns;  ///< by HeatmapContent::link
  bool locked = false;
  std::map<std::string, std::pair<float, float>> ranges;  ///< by unit
};

}  // namespace kvreplay::viewer
