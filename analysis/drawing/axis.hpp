#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvreplay {

struct AxisTick {
  double at = 0;  ///< [0, 1]
  std::string text;
};

/// Where a value stands between two others, [0, 1], by its logarithm where `log`; beyond them, zeros of a
/// logarithm among them, on the nearer edge. NaN for NaN.
double place_between(double low, double high, bool log, double value);

/// 1, 2 or 5 times a power of ten: the first that is at least `least`.
double round_step(double least);

/// A range of values as a length from 0 to 1.
struct Axis {
  std::string label;  ///< with its unit
  double low = 0, high = 1;
  bool log = false;

  double at(double value) const { return place_between(low, high, log, value); }
  std::vector<AxisTick> ticks() const;
};

/// The smallest round range that holds every finite value, 0 included where `from_zero`; [0, 1] of none.
Axis linear_axis(std::string label, std::span<const double> values, bool from_zero);
/// The smallest round logarithmic range that holds every positive value, ending at powers of ten or, below
/// two decades, at 1, 2 or 5 times one. At most `most_decades` below the largest value.
Axis log_axis(std::string label, std::span<const double> values, int most_decades = 12);

}  // namespace kvreplay
