#include "viewer/serve/changed_areas.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kvreplay::viewer {
namespace {

constexpr int kTile = 32;  // changes nearer than that share an area

bool same_rows(std::span<const Rgb> a, std::span<const Rgb> b, int width, const PixelArea& tile) {
  for (int y = tile.y; y < tile.y + tile.height; ++y) {
    const std::size_t at =
        static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(tile.x);
    if (std::memcmp(&a[at], &b[at], static_cast<std::size_t>(tile.width) * sizeof(Rgb)) != 0) return false;
  }
  return true;
}

}  // namespace

std::vector<PixelArea> changed_areas(std::span<const Rgb> before, std::span<const Rgb> now, int width,
                                     int height) {
  if (now.empty()) return {};
  if (before.size() != now.size()) return {{0, 0, width, height}};
  std::vector<PixelArea> areas;
  std::size_t above = 0;  // the first area that may go on below
  for (int y = 0; y < height; y += kTile) {
    const std::size_t first = areas.size();
    const int rows = std::min(kTile, height - y);
    for (int x = 0; x < width; x += kTile) {
      const PixelArea tile{x, y, std::min(kTile, width - x), rows};
      if (same_rows(before, now, width, tile)) continue;
      if (areas.size() > first && areas.back().x + areas.back().width == x)
        areas.back().width += tile.width;
      else
        areas.push_back(tile);
    }
    // An area with the columns of one that ends directly above it is merged into that one.
    std::vector<PixelArea> row(areas.begin() + static_cast<std::ptrdiff_t>(first), areas.end());
    areas.resize(first);
    for (const PixelArea& area : row) {
      const auto begin = areas.begin() + static_cast<std::ptrdiff_t>(above);
      const auto it = std::find_if(begin, areas.end(), [&](const PixelArea& other) {
        return other.x == area.x && other.width == area.width && other.y + other.height == area.y;
      });
      if (it != areas.end())
        it->height += area.height;
      else
        areas.push_back(area);
    }
    while (above < areas.size() && areas[above].y + areas[above].height < y) ++above;
  }
  return areas;
}

std::vector<Rgb> cut_out(std::span<const Rgb> picture, int width, const PixelArea& area) {
  std::vector<Rgb> cut;
  cut.reserve(static_cast<std::size_t>(area.width) * static_cast<std::size_t>(area.height));
  for (int y = area.y; y < area.y + area.height; ++y) {
    const auto begin = picture.begin() + static_cast<std::ptrdiff_t>(y) * width + area.x;
    cut.insert(cut.end(), begin, begin + area.width);
  }
  return cut;
}

}  // namespace kvreplay::viewer
