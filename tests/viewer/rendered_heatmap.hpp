#pragma once

#include "viewer/model/heatmap_image.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

// What a heatmap looks like, pixel by pixel: the reference that the shader is checked against.

namespace kvreplay::viewer {

inline Rgb mixed_color(Rgb color, Rgb other, float share) {
  const auto part = [&](std::uint8_t from, std::uint8_t to) {
    const float level = from + (static_cast<float>(to) - static_cast<float>(from)) * share;
    return static_cast<std::uint8_t>(level + 0.5F);
  };
  return {part(color.r, other.r), part(color.g, other.g), part(color.b, other.b)};
}

/// What is worked out once a picture.
struct Painter {
  Painter(const HeatmapImage& of, const TileMap& tiles)
      : image(of),
        level(drawn_level(of.camera, of.size)),
        columns(axis_texels(of.camera.x, of.width, of.size.columns, level)),
        rows(axis_texels(of.camera.y, of.height, of.size.rows, level)),
        faded(faded_pixels(of)),
        texels(tiles, of.size, level) {}

  Rgb color(int x, int y) {
    const std::int32_t column = columns[x], row = rows[y];
    if (column < 0 || row < 0) return image.ink.outside;
    const Rgb plain = color_inside(x, y, texels.at(row, column));
    return faded[x] != 0 ? mixed_color(plain, image.ink.outside, kFade) : plain;
  }

  Rgb color_inside(int x, int y, std::optional<float> value) const {
    const HeatmapInk& ink = image.ink;
    if (!value) return ink.pending;
    if (std::isnan(*value)) return (x + y) / kHatchWidth % 2 == 0 ? ink.hatch_a : ink.hatch_b;
    if (ink.mark_beyond && image.scale.below(*value)) return ink.under;
    if (ink.mark_beyond && image.scale.above(*value)) return ink.over;
    return color_of(image.colors, image.scale.place(*value));
  }

  const HeatmapImage& image;
  int level;
  std::vector<std::int32_t> columns, rows;
  std::vector<std::uint8_t> faded;
  TexelReader texels;
};

/// The colour of the pixel (x, y), x to the right, y downwards, from the tiles at hand.
inline Rgb color_at(const HeatmapImage& image, const TileMap& tiles, int x, int y) {
  return Painter(image, tiles).color(x, y);
}

/// All pixels, row by row: color_at() for each.
inline std::vector<Rgb> rendered(const HeatmapImage& image, const TileMap& tiles) {
  std::vector<Rgb> pixels;
  Painter painter(image, tiles);
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x) pixels.push_back(painter.color(x, y));
  return pixels;
}

}  // namespace kvreplay::viewer
