#pragma once

#include "analysis/drawing/axis.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvreplay {

/// One pixel, sRGB.
struct Rgb {
  std::uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Rgb&) const = default;
};

inline constexpr Rgb kWhiteColor{255, 255, 255};
inline constexpr Rgb kNoValueColor{170, 170, 170};  ///< NaN

/// Light in [0, 1], clamped, as sRGB stores it (IEC 61966-2-1), and the light of what is stored.
std::uint8_t srgb_byte(double light);
double srgb_light(std::uint8_t encoded);
/// WCAG's relative luminance.
double luminance(Rgb color);

/// The colour of t in [-1, 1]: white at 0, blue towards -1, red towards 1. Interpolated in Oklab, so that
/// equal steps look alike and t and -t are equally light. t beyond [-1, 1] gets the end's colour, NaN
/// kNoValueColor.
Rgb diverging_color(double t);

/// The colour of t in [0, 1]: pale yellow at 0 over green to dark blue at 1. Lightness falls evenly in Oklab.
/// t beyond [0, 1] gets the end's colour, NaN kNoValueColor.
Rgb sequential_color(double t);

/// Mapping from values to colours. Sequential: light to dark from `low` to `high`. Diverging: white at 0,
/// with equal lengths on both sides.
struct ColorScale {
  bool diverging = false;
  bool log = false;  ///< sequential only
  double low = 0, high = 1;
  bool flipped = false;  ///< blue at the upper end: where larger is better
  /// Colours in equal steps from `low` to `high`, in place of the sequential or diverging ones; or empty.
  std::vector<Rgb> colors = {};

  /// In [0, 1]; NaN for NaN.
  double at(double value) const { return place_between(low, high, log, value); }
  Rgb color(double value) const;
};

/// "#rrggbb".
std::string hex(Rgb color);
/// True if white on this colour has more contrast than black (WCAG 2: at a luminance of 0.179 both have
/// 4.58).
inline bool is_dark(Rgb color) { return luminance(color) < 0.179; }

}  // namespace kvreplay
