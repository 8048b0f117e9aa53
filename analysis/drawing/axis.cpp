#include "analysis/drawing/axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  bool empty() const { return low > high; }
};

template <class Wanted>
Extent range_of(std::span<const double> values, const Wanted& wanted) {
  Extent range;
  for (const double value : values)
    if (std::isfinite(value) && wanted(value))
      range = {std::min(range.low, value), std::max(range.high, value)};
  return range;
}

/// 1, 2 or 5 times a power of ten: the last that is not above the value.
double round_below(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value) + 1e-9));
  for (const double factor : {5.0, 2.0})
    if (factor * power <= value * (1 + 1e-9)) return factor * power;
  return power;
}

std::string tick_text(double value) { return fmt::format("{:.4g}", std::abs(value) < 1e-300 ? 0.0 : value); }

std::string power_text(int exponent) {
  if (exponent >= -3 && exponent <= 4) return tick_text(std::pow(10.0, exponent));
  return fmt::format("1e{}", exponent);
}

std::vector<AxisTick> log_ticks(const Axis& axis) {
  std::vector<AxisTick> ticks;
  const double first = std::log10(axis.low), last = std::log10(axis.high), span = last - first;
  const int from = static_cast<int>(std::floor(first + 1e-9)), to = static_cast<int>(std::ceil(last - 1e-9));
  const int step = span > 12 ? 4 : span > 8 ? 2 : 1;
  for (int power = from; power <= to; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && span > 2.01) continue;
      if (factor == 1 && power % step != 0) continue;
      const double value = factor * std::pow(10.0, power);
      if (value < axis.low * (1 - 1e-9) || value > axis.high * (1 + 1e-9)) continue;
      ticks.push_back({axis.at(value), factor == 1 ? power_text(power) : tick_text(value)});
    }
  }
  return ticks;
}

}  // namespace

double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least) + 1e-9));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

double place_between(double low, double high, bool log, double value) {
  if (std::isnan(value)) return value;
  if (!log) return std::clamp((value - low) / (high - low), 0.0, 1.0);
  if (value <= low) return 0;
  return std::min(std::log(value / low) / std::log(high / low), 1.0);
}

std::vector<AxisTick> Axis::ticks() const {
  if (log) return log_ticks(*this);
  std::vector<AxisTick> ticks;
  const double step = round_step((high - low) / 6);
  for (double n = std::ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; ++n)
    ticks.push_back({at(n * step), tick_text(n * step)});
  return ticks;
}

Axis linear_axis(std::string label, std::span<const double> values, bool from_zero) {
  Extent range = range_of(values, [](double) { return true; });
  if (range.empty()) return {std::move(label), 0, 1, false};
  if (from_zero) range = {std::min(range.low, 0.0), std::max(range.high, 0.0)};
  if (range.low == range.high) range = {range.low - 0.5, range.high + 0.5};
  const double step = round_step((range.high - range.low) / 6);
  return {std::move(label), std::floor(range.low / step + 1e-9) * step,
          std::ceil(range.high / step - 1e-9) * step, false};
}

Axis log_axis(std::string label, std::span<const double> values, int most_decades) {
  Extent range = range_of(values, [](double value) { return value > 0; });
  if (range.empty()) return {std::move(label), 0.1, 1, true};
  range.low = std::max(range.low, range.high * std::pow(10.0, -most_decades));
  if (range.high / range.low > 100)
    range = {std::pow(10.0, std::floor(std::log10(range.low) + 1e-9)),
             std::pow(10.0, std::ceil(std::log10(range.high) - 1e-9))};
  else
    range = {round_below(range.low), round_step(range.high)};
  if (range.low == range.high) range = {range.low / 2, range.high * 2};
  return {std::move(label), range.low, range.high, true};
}

}  // namespace kvreplay
