#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvreplay {

/// A number of positions at one end of a prompt, or a share of the prompt.
struct Positions {
  std::ptrdiff_t count = 0;
  double percent = 0;  ///< in (0, 100]: of the prompt, in place of `count`

  constexpr Positions() = default;
  constexpr Positions(std::ptrdiff_t positions) : count(positions) {}  // NOLINT: a number of them is one
  static constexpr Positions share(double percent) {
    Positions positions;
    positions.percent = percent;
    return positions;
  }
  bool operator==(const Positions&) const = default;

  /// The number for a prompt of l tokens; x % of it is max(1, floor(x l / 100 + 1/2)).
  std::ptrdiff_t of(std::ptrdiff_t l) const {
    if (percent == 0) return count;
    const double share = std::floor(percent * static_cast<double>(l) / 100 + 0.5);
    return std::max<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(share));
  }
};

}  // namespace kvreplay
