#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <string>

// Formatting of numbers in the dashboard.

namespace kvreplay::viewer {

/// Value of a missing metric.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// True if a number is below rounding error compared with magnitudes of `range`.
inline bool is_noise(double value, double range) { return std::abs(value) < 1e-9 * std::abs(range); }

/// b - a; 0 if the difference is below rounding error.
inline double difference_of(double a, double b) {
  return is_noise(b - a, std::fmax(std::abs(a), std::abs(b))) ? 0 : b - a;
}

/// Three significant digits at most: "0.125", "0.00102", "-1.2e3", "4.7e-8", the exponent standing from 1e3
/// up and below 1e-3; a dash for NaN.
std::string number_text(double value);
/// A number beside others of magnitude `range`: "0" for what is rounding alone (is_noise()).
std::string number_text(double value, double range);
/// The widest that these come to, for the width of columns.
inline constexpr const char* kWidestNumber = "-8.88e-88";

/// "1.2 GiB".
std::string bytes_text(double bytes);
/// A share as "24.6 %", and a difference of two shares as "+2.1 points".
std::string percent_text(double share);
std::string points_text(double difference);

/// The numbers of one column of a table: all with the same decimals. Plain where they lie within two decades
/// of the largest, else with exponents. Beside others of one unit, what is rounding alone is 0; of several
/// units, numbers that are not all plain are written each by itself.
class NumberColumn {
 public:
  NumberColumn() = default;
  explicit NumberColumn(std::span<const double> values, bool one_unit = true);
  std::string text(double value) const;

 private:
  bool plain_ = false, one_unit_ = true;
  int decimals_ = 2;
  double range_ = 0;  // the largest magnitude, of one unit
};

}  // namespace kvreplay::viewer
