#pragma once

#include "viewer/model/heatmap_image.hpp"

#include <cstdint>
#include <string>

namespace kvreplay::viewer {

/// What the values of a scene are drawn from.
enum class Values {
  signed_decades,  ///< both signs over twelve decades, zeros
  unkind,          ///< the same with NaN, infinities, the largest and the least numbers among them
};

/// A tile of pseudo-random values, the same for the same key and seed.
std::shared_ptr<const Tile> random_tile(MatrixSize size, const TileKey& key, Values values,
                                        std::uint64_t seed);

/// Tiles for all that the image shows.
TileMap visible_scene(const HeatmapImage& image, Values values, std::uint64_t seed = 1);

/// An image of a matrix fitted into width x height, linear over -2..3.
HeatmapImage fitted_image(MatrixSize size, int width, int height);

/// How two pictures differ.
struct Difference {
  int largest = 0;         ///< over pixels and channels, levels of 255
  std::size_t pixels = 0;  ///< that differ by more than 2
  std::string where;       ///< the worst: "(x, y): #rrggbb for #rrggbb"
};
Difference difference(const std::vector<Rgb>& shown, const std::vector<Rgb>& expected, int width);

}  // namespace kvreplay::viewer
