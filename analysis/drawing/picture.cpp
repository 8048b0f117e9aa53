#include "analysis/drawing/picture.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <cassert>
#include <cmath>
#include <png.h>

namespace kvreplay {

std::vector<std::byte> png_bytes(std::span<const Rgb> pixels, Index width, Index height, bool fast) {
  static_assert(sizeof(Rgb) == 3, "libpng reads pixels without gaps");
  assert(std::ssize(pixels) == width * height);
  // libpng's simplified interface: no longjmp over our frames, no time stamp, its own fixed compression.
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  if (fast) image.flags = PNG_IMAGE_FLAG_FAST;
  std::vector<std::byte> bytes(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr) == 0)
    throw InputError(
        fmt::format("a picture of {} x {}: libpng says {}", image.width, image.height, image.message));
  bytes.resize(size);
  return bytes;
}

std::vector<std::byte> heatmap_png(const Matrix<double>& values, double limit, Index cell) {
  std::vector<Rgb> pixels;
  for (Index y = 0; y < values.rows() * cell; ++y)
    for (Index x = 0; x < values.cols() * cell; ++x) {
      const double value = values(y / cell, x / cell);
      pixels.push_back(diverging_color(limit > 0 || std::isnan(value) ? value / limit : 0.0));
    }
  return png_bytes(pixels, values.cols() * cell, values.rows() * cell);
}

}  // namespace kvreplay
