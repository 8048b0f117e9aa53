#pragma once

#include "tests/analysis/picture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "viewer/gl/frame_buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

// Pictures against those that were looked at.

namespace kvreplay::test {

inline const std::filesystem::path kGolden = test::source_dir() / "tests" / "golden" / "viewer";

/// Levels of 255 that a colour may be off: renderers round differently, and edges of letters with them.
inline constexpr int kGoldenLevels = 24;
/// Share of pixels that may be farther off.
inline constexpr double kGoldenShare = 0.004;

/// What of two pictures differs, and by how much: black where they agree.
struct GoldenDifference {
  double share = 1;
  std::vector<Rgb> picture;
};

inline GoldenDifference golden_difference(const std::vector<Rgb>& got, const std::vector<Rgb>& want) {
  GoldenDifference found;
  if (got.size() != want.size()) return found;
  std::size_t off = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto apart = [](std::uint8_t a, std::uint8_t b) {
      return static_cast<std::uint8_t>(std::abs(a - b));
    };
    const Rgb d{apart(got[i].r, want[i].r), apart(got[i].g, want[i].g), apart(got[i].b, want[i].b)};
    if (std::max({d.r, d.g, d.b}) > kGoldenLevels) ++off;
    found.picture.push_back(d);
  }
  found.share = static_cast<double>(off) / static_cast<double>(got.size());
  return found;
}

/// Fails the test where the picture is not the one of this name; KVREPLAY_WRITE_GOLDEN makes it that one.
inline void check_golden(const std::string& name, const std::vector<Rgb>& got, int width, int height) {
  if (std::getenv("KVREPLAY_WRITE_GOLDEN") != nullptr)
    viewer::write_picture(kGolden / name, got, width, height);
  const GoldenDifference found = golden_difference(got, Picture(kGolden / name).pixels);
  if (found.share <= kGoldenShare) return;
  const std::filesystem::path where =
      std::filesystem::temp_directory_path() / ("kvreplay-difference-" + name);
  if (!found.picture.empty()) viewer::write_picture(where, found.picture, width, height);
  FAIL_CHECK(name << ": " << 100 * found.share << " % of the pixels differ; see " << where.string());
}

/// A part of a picture of `width` pixels a row.
inline std::vector<Rgb> cropped(const std::vector<Rgb>& picture, int width, int x, int y, int part_width,
                                int part_height) {
  std::vector<Rgb> part;
  for (int row = y; row < y + part_height; ++row)
    for (int column = x; column < x + part_width; ++column)
      part.push_back(picture[static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
                             static_cast<std::size_t>(column)]);
  return part;
}

}  // namespace kvreplay::test
