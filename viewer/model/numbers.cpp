#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace kvreplay::viewer {
namespace {

constexpr const char* kNoNumber = "\xE2\x80\x94";
constexpr int kLeastPlain = -3, kMostPlain = 2;  // decades

/// Rounded to three digits: 999.9 is 1.00 of the decade 3.
struct Rounded {
  explicit Rounded(double value) {
    const std::string scientific = fmt::format("{:.2e}", value);
    const auto e = scientific.find('e');
    digits = std::strtod(scientific.substr(0, e).c_str(), nullptr);
    decade = std::atoi(scientific.c_str() + e + 1);
  }
  double digits;
  int decade;
};

}  // namespace

std::string number_text(double value) { return number_text(value, 0); }

std::string number_text(double value, double range) {
  if (std::isnan(value)) return kNoNumber;
  if (value == 0 || is_noise(value, range)) return "0";
  if (std::isinf(value)) return fmt::format("{:g}", value);
  const Rounded rounded(value);
  return rounded.decade < kLeastPlain || rounded.decade > kMostPlain
             ? fmt::format("{:.3g}e{}", rounded.digits, rounded.decade)
             : fmt::format("{:.3g}", value);
}

std::string bytes_text(double bytes) {
  if (std::isnan(bytes)) return kNoNumber;
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(units)) {  // three digits at most
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

std::string percent_text(double share) {
  return std::isnan(share) ? kNoNumber : fmt::format("{:.1f} %", 100 * share);
}

std::string points_text(double difference) {
  return std::isnan(difference) ? kNoNumber : fmt::format("{:+.1f} points", 100 * difference);
}

NumberColumn::NumberColumn(std::span<const double> values, bool one_unit) : one_unit_(one_unit) {
  double largest = 0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  if (largest == 0) return;
  if (one_unit) range_ = largest;
  double least = largest;
  for (const double value : values)
    if (std::isfinite(value) && value != 0 && !is_noise(value, range_))
      least = std::min(least, std::abs(value));
  const int most = Rounded(largest).decade;
  const int last = Rounded(least).decade;
  plain_ = most >= kLeastPlain && most <= kMostPlain + 2 && last >= most - 2;
  // Three digits for the smallest, but no more than four for the largest.
  if (plain_) decimals_ = std::max(std::min(2 - last, 3 - most), 0);
}

std::string NumberColumn::text(double value) const {
  if (!std::isfinite(value) || value == 0 || is_noise(value, range_)) return number_text(value, range_);
  if (!plain_) {
    if (!one_unit_) return number_text(value);
    const Rounded rounded(value);
    return fmt::format("{:.2f}e{}", rounded.digits, rounded.decade);
  }
  const std::string text = fmt::format("{:.{}f}", value, decimals_);
  return text.find_first_not_of("-0.") == std::string::npos ? fmt::format("{:.{}f}", 0.0, decimals_) : text;
}

}  // namespace kvreplay::viewer
