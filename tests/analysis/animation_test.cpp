// A film's bytes, read by a reader of the test's own.

#include "analysis/drawing/animation.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <png.h>
#include <string>
#include <vector>
#include <zlib.h>

using namespace kvreplay;

namespace {

struct Chunk {
  std::string type, data;
};

std::uint32_t number(const std::string& bytes, std::size_t at, std::size_t count = 4) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes.at(at + i));
  return value;
}

std::vector<Chunk> chunks_of(const std::vector<std::byte>& png) {
  std::string bytes;
  for (const std::byte byte : png) bytes += static_cast<char>(byte);
  CHECK(bytes.substr(0, 8) == "\x89PNG\r\n\x1A\n");
  std::vector<Chunk> chunks;
  for (std::size_t at = 8; at < bytes.size();) {
    const std::size_t size = number(bytes, at);
    chunks.push_back({bytes.substr(at + 4, 4), bytes.substr(at + 8, size)});
    const std::string checked = bytes.substr(at + 4, size + 4);
    CHECK(number(bytes, at + 8 + size) ==
          crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size())));
    at += size + 12;
  }
  return chunks;
}

struct Frame {
  std::size_t width = 0, height = 0, x = 0, y = 0;
  std::uint32_t milliseconds = 0;
  std::string compressed;
};

/// A film as a browser shows it: what stands on the screen at each frame, by palette index.
struct Shown {
  std::vector<Frame> frames;
  std::vector<std::vector<Rgb>> pictures;

  explicit Shown(const std::vector<std::byte>& png) {
    std::string palette;
    std::uint32_t sequence = 0, said = 0, width = 0, height = 0;
    for (const Chunk& chunk : chunks_of(png)) {
      if (chunk.type == "IHDR") {
        width = number(chunk.data, 0);
        height = number(chunk.data, 4);
        CHECK(chunk.data.substr(8) == std::string("\x08\x03\0\0\0", 5));  // 8 bits, of a palette
      }
      if (chunk.type == "PLTE") palette = chunk.data;
      if (chunk.type == "acTL") {
        said = number(chunk.data, 0);
        CHECK(number(chunk.data, 4) == 0);
      }
      if (chunk.type == "fcTL") {
        CHECK(number(chunk.data, 0) == sequence++);
        CHECK(number(chunk.data, 22, 2) == 1000);
        CHECK(chunk.data[24] == 0);
        CHECK(chunk.data[25] == (frames.empty() ? 0 : 1));
        frames.push_back({number(chunk.data, 4), number(chunk.data, 8), number(chunk.data, 12),
                          number(chunk.data, 16), number(chunk.data, 20, 2), ""});
      }
      if (chunk.type == "IDAT") frames.at(0).compressed += chunk.data;
      if (chunk.type == "fdAT") {
        CHECK(number(chunk.data, 0) == sequence++);
        frames.back().compressed += chunk.data.substr(4);
      }
    }
    CHECK(said == frames.size());
    std::vector<Rgb> screen(width * height);
    for (const Frame& frame : frames) {
      std::vector<unsigned char> rows(frame.height * (frame.width + 1));
      uLongf size = rows.size();
      REQUIRE(uncompress(rows.data(), &size, reinterpret_cast<const Bytef*>(frame.compressed.data()),
                         frame.compressed.size()) == Z_OK);
      REQUIRE(size == rows.size());
      REQUIRE(frame.x + frame.width <= width);
      REQUIRE(frame.y + frame.height <= height);
      for (std::size_t y = 0; y < frame.height; ++y) {
        REQUIRE(rows[y * (frame.width + 1)] == 0);  // no filter
        for (std::size_t x = 0; x < frame.width; ++x) {
          const std::size_t index = rows[y * (frame.width + 1) + 1 + x];
          if (index == 0) continue;  // as before
          const auto channel = [&](std::size_t c) {
            return static_cast<std::uint8_t>(palette.at(3 * index + c));
          };
          screen[(frame.y + y) * width + frame.x + x] = {channel(0), channel(1), channel(2)};
        }
      }
      pictures.push_back(screen);
    }
  }
};

/// No two colours alike for `colors` up to 65536.
std::vector<Rgb> noise(Index pixels, std::uint32_t colors, std::uint32_t seed) {
  std::vector<Rgb> made;
  for (Index i = 0; i < pixels; ++i) {
    seed = seed * 1664525 + 1013904223;
    const std::uint32_t color = (seed >> 8) % colors;
    made.push_back({static_cast<std::uint8_t>(color & 255U), static_cast<std::uint8_t>(color >> 8), 7});
  }
  return made;
}

}  // namespace

TEST_CASE("a film of few colours shows every picture as it is", "[animation]") {
  constexpr Index kWidth = 150, kHeight = 120;
  Animation film(kWidth, kHeight);
  std::vector<std::vector<Rgb>> pictures = {noise(kWidth * kHeight, 250, 1)};
  pictures.push_back(pictures.back());
  pictures.back()[17 * kWidth + 30] = pictures.front()[0];
  pictures.back()[19 * kWidth + 33] = {1, 2, 7};
  pictures.push_back(noise(kWidth * kHeight, 250, 2));
  for (const auto& picture : pictures) film.add(picture, 170);
  film.add(pictures.back(), 500);  // longer
  REQUIRE(film.frames() == 3);
  const Shown shown(film.png());
  REQUIRE(shown.pictures.size() == 3);
  for (std::size_t f = 0; f < 3; ++f) CHECK((shown.pictures[f] == pictures[f]));
  CHECK(shown.frames[0].milliseconds == 170);
  CHECK(shown.frames[2].milliseconds == 670);
  // Of the second only what changed.
  CHECK(shown.frames[1].x == 30);
  CHECK(shown.frames[1].y == 17);
  CHECK(shown.frames[1].width == 4);
  CHECK(shown.frames[1].height == 3);
}

TEST_CASE("a reader of PNG shows a film's first picture", "[animation]") {
  Animation film(20, 10);
  const std::vector<Rgb> first = noise(200, 40, 3);
  film.add(first, 100);
  film.add(noise(200, 40, 4), 100);
  const std::vector<std::byte> png = film.png();
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_memory(&image, png.data(), png.size()) != 0);
  image.format = PNG_FORMAT_RGB;
  std::vector<Rgb> read(200);
  REQUIRE(png_image_finish_read(&image, nullptr, read.data(), 0, nullptr) != 0);
  CHECK((read == first));
}

TEST_CASE("many colours become the nearest of a palette, the common ones as they are", "[animation]") {
  std::vector<std::vector<Rgb>> pictures = {noise(40000, 60000, 5)};
  const Rgb common{250, 251, 252};
  pictures.push_back(std::vector<Rgb>(40000, common));
  const Palette palette = palette_of(pictures, 255);
  CHECK(palette.colors.size() == 255);
  CHECK(palette.colors[palette.of(common)] == common);
  double worst = 0;
  for (const Rgb& pixel : pictures.front()) {
    const Rgb shown = palette.colors[palette.of(pixel)];
    worst = std::max({worst, std::abs(double(pixel.r) - shown.r), std::abs(double(pixel.g) - shown.g)});
  }
  CHECK(worst < 32);  // a square of 16 x 16 colours each, about
  CHECK(palette_of(pictures, 1).colors.size() == 1);
  const std::vector<std::vector<Rgb>> one = {{common}};
  CHECK(palette_of(one, 255).colors == std::vector<Rgb>{common});
}

TEST_CASE("a film without pictures is none", "[animation]") {
  CHECK_THROWS_AS(Animation(3, 3).png(), InputError);
}
