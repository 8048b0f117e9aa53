#include "analysis/drawing/canvas.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <png.h>
#include <vector>

namespace kvreplay::png {

Canvas::Canvas(Index width, Index height)
    : width_(width), height_(height), pixels_(static_cast<std::size_t>(width * height), kWhite) {}

void Canvas::mix(Index x, Index y, Rgb color, double opacity) {
  Rgb& pixel = pixels_[y * width_ + x];
  const auto between = [opacity](std::uint8_t from, std::uint8_t to) {
    return static_cast<std::uint8_t>(std::lround(from + opacity * (to - from)));
  };
  pixel = {between(pixel.r, color.r), between(pixel.g, color.g), between(pixel.b, color.b)};
}

void Canvas::fill(const Rect& area, Rgb color, double opacity) {
  const Index right = std::min(area.right(), width_), bottom = std::min(area.bottom(), height_);
  for (Index y = std::max<Index>(area.y, 0); y < bottom; ++y)
    for (Index x = std::max<Index>(area.x, 0); x < right; ++x) mix(x, y, color, opacity);
}

void Canvas::frame(const Rect& area, Rgb color) {
  fill({area.x - 1, area.y - 1, area.width + 2, 1}, color);
  fill({area.x - 1, area.bottom(), area.width + 2, 1}, color);
  fill({area.x - 1, area.y, 1, area.height}, color);
  fill({area.right(), area.y, 1, area.height}, color);
}

void Canvas::stroke(Point from, Point to, double thickness, Rgb color) {
  const double reach = thickness / 2 + 1;
  const auto first = [reach](double a, double b) {
    return std::max<Index>(static_cast<Index>(std::floor(std::min(a, b) - reach)), 0);
  };
  const auto end = [reach](double a, double b, Index size) {
    return std::min<Index>(static_cast<Index>(std::ceil(std::max(a, b) + reach)), size);
  };
  const double dx = to.x - from.x, dy = to.y - from.y;
  const double length2 = dx * dx + dy * dy;
  for (Index y = first(from.y, to.y); y < end(from.y, to.y, height_); ++y) {
    for (Index x = first(from.x, to.x); x < end(from.x, to.x, width_); ++x) {
      const double px = static_cast<double>(x) + 0.5 - from.x, py = static_cast<double>(y) + 0.5 - from.y;
      const double along = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0;
      const double distance = std::hypot(px - along * dx, py - along * dy);
      const double covered = std::clamp(thickness / 2 + 0.5 - distance, 0.0, 1.0);
      if (covered > 0) mix(x, y, color, covered);
    }
  }
}

std::vector<std::byte> png_bytes(const Canvas& canvas) {
  static_assert(sizeof(Rgb) == 3, "libpng reads pixels without gaps");
  // libpng's simplified interface: no longjmp over our frames, no time stamp, its own fixed compression.
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(canvas.width());
  image.height = static_cast<png_uint_32>(canvas.height());
  image.format = PNG_FORMAT_RGB;
  std::vector<std::byte> bytes(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, canvas.pixels().data(), 0, nullptr) == 0)
    throw InputError(
        fmt::format("a picture of {} x {}: libpng says {}", image.width, image.height, image.message));
  bytes.resize(size);
  return bytes;
}

}  // namespace kvreplay::png
