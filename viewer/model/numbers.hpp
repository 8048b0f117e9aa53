#pragma once

#include <limits>

namespace kvreplay::viewer {

/// A figure that is not there.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace kvreplay::viewer
