#include "analysis/drawing/png_file.hpp"

#include "data/atomic_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <png.h>
#include <vector>

namespace kvreplay::png {

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

void write_canvas(const std::filesystem::path& path, const Canvas& canvas) {
  write_file(path, png_bytes(canvas));
}

}  // namespace kvreplay::png
