#pragma once

#include "analysis/drawing/picture.hpp"
#include "tests/support/catch.hpp"

#include <filesystem>
#include <png.h>
#include <vector>

namespace kvreplay::test {

/// A PNG file as libpng reads it back.
struct Picture {
  Index width = 0, height = 0;
  std::vector<Rgb> pixels;

  explicit Picture(const std::filesystem::path& path) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    REQUIRE(png_image_begin_read_from_file(&image, path.c_str()) != 0);
    width = image.width;
    height = image.height;
    image.format = PNG_FORMAT_RGB;
    pixels.resize(width * height);
    REQUIRE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr) != 0);
  }
  Rgb at(Index x, Index y) const { return pixels.at(y * width + x); }
};

}  // namespace kvreplay::test
