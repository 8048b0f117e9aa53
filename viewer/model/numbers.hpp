#pragma once

#include <cmath>
#include <limits>

namespace kvreplay::viewer {

/// A figure that is not there.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Whether a number is rounding alone beside others of magnitude `range`.
inline bool is_noise(double value, double range) { return std::abs(value) < 1e-9 * std::abs(range); }

/// b - a; 0 where that is rounding alone beside them.
inline double difference_of(double a, double b) {
  return is_noise(b - a, std::fmax(std::abs(a), std::abs(b))) ? 0 : b - a;
}

}  // namespace kvreplay::viewer
