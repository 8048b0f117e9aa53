#include "viewer/model/heatmap_image.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

Rgb mixed(Rgb color, Rgb other, float share) {
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
    return faded[x] != 0 ? mixed(plain, image.ink.outside, kFade) : plain;
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

}  // namespace

std::vector<std::int32_t> axis_texels(const AxisView& axis, int pixels, Index cells, int level) {
  std::vector<std::int32_t> shown(std::max(pixels, 0), -1);
  if (shown.empty() || cells <= 0) return shown;
  const double end = static_cast<double>(cells);
  std::ptrdiff_t last = -1;  // the last pixel whose middle lies in the matrix
  for (std::size_t p = 0; p < shown.size(); ++p) {
    const double cell = axis.cell_at(static_cast<double>(p) + 0.5);
    if (!(cell >= 0 && cell < end)) continue;
    shown[p] = static_cast<std::int32_t>(static_cast<Index>(cell) >> level);
    last = static_cast<std::ptrdiff_t>(p);
  }
  const double edge = axis.pixel_of(end);
  std::int32_t newest = static_cast<std::int32_t>(texels(cells, level)) - 1;
  if (last < 0 || shown[last] >= newest || edge > pixels + 1e-6) return shown;
  // The pixel that the edge crosses is free for it; else it pushes the others back, as far as each of them
  // is the only one of its texel.
  if (edge > static_cast<double>(last + 1) + 1e-6 && last + 1 < pixels) ++last;
  for (; last >= 0 && shown[last] < newest; --last, --newest) shown[last] = newest;
  return shown;
}

std::vector<std::uint8_t> faded_pixels(const HeatmapImage& image) {
  std::vector<std::uint8_t> faded(std::max(image.width, 0), 0);
  if (image.faded_columns.empty()) return faded;
  const int level = drawn_level(image.camera, image.size);
  const std::vector<std::int32_t> shown = axis_texels(image.camera.x, image.width, image.size.columns, level);
  const Index known = std::min(std::ssize(image.faded_columns), image.size.columns);
  for (std::size_t p = 0; p < shown.size(); ++p) {
    const Index first = static_cast<Index>(shown[p]) << level;
    if (shown[p] < 0 || first >= known) continue;
    const Index end = std::min(first + (Index{1} << level), image.size.columns);
    faded[p] =
        end <= known && std::all_of(image.faded_columns.begin() + first, image.faded_columns.begin() + end,
                                    [](std::uint8_t is) { return is != 0; })
            ? 1
            : 0;
  }
  return faded;
}

Rgb color_at(const HeatmapImage& image, const TileMap& tiles, int x, int y) {
  return Painter(image, tiles).color(x, y);
}

std::vector<Rgb> rendered(const HeatmapImage& image, const TileMap& tiles) {
  std::vector<Rgb> pixels;
  pixels.reserve(static_cast<std::size_t>(std::max(image.width, 0)) *
                 static_cast<std::size_t>(std::max(image.height, 0)));
  Painter painter(image, tiles);
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x) pixels.push_back(painter.color(x, y));
  return pixels;
}

}  // namespace kvreplay::viewer
