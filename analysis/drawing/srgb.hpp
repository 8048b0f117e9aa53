#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

// IEC 61966-2-1: how sRGB stores light.

namespace kvreplay::drawing {

/// Light in [0, 1], clamped, as a byte of sRGB.
inline std::uint8_t srgb_byte(double linear) {
  const double x = std::clamp(linear, 0.0, 1.0);
  const double encoded = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
  return static_cast<std::uint8_t>(std::lround(255 * encoded));
}

/// The light of an sRGB value in [0, 1].
inline double srgb_light(double encoded) {
  return encoded <= 0.04045 ? encoded / 12.92 : std::pow((encoded + 0.055) / 1.055, 2.4);
}

}  // namespace kvreplay::drawing
