#pragma once

#include <cstdint>

namespace kvreplay::png {

/// One pixel, sRGB.
struct Rgb {
  std::uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Rgb&) const = default;
};

inline constexpr Rgb kWhite{255, 255, 255};
inline constexpr Rgb kInk{38, 38, 42};         ///< text, ticks and frames
inline constexpr Rgb kNoValue{170, 170, 170};  ///< NaN

/// The colour of t in [-1, 1]: white at 0, blue towards -1, red towards 1. Interpolated in Oklab, so that
/// equal steps look alike and t and -t are equally light. t beyond [-1, 1] gets the end's colour, NaN
/// kNoValue.
Rgb diverging_color(double t);

/// The colour of t in [0, 1]: pale yellow at 0 over green to dark blue at 1. Lightness falls evenly in Oklab.
/// t beyond [0, 1] gets the end's colour, NaN kNoValue.
Rgb sequential_color(double t);

}  // namespace kvreplay::png
