#include "analysis/drawing/color_scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay::report {
double ColorScale::at(double value) const {
  if (std::isnan(value)) return value;
  if (log) {
    if (value <= low) return 0;
    return std::min(std::log(value / low) / std::log(high / low), 1.0);
  }
  return std::clamp((value - low) / (high - low), 0.0, 1.0);
}

png::Rgb ColorScale::color(double value) const {
  const double t = at(value);
  const double along = flipped ? 1 - t : t;
  return diverging ? png::diverging_color(2 * along - 1) : png::sequential_color(along);
}

ColorScale color_scale(FigureScale scale, std::span<const double> values) {
  if (scale == FigureScale::correlation) return {true, false, -1, 1, true};
  if (scale == FigureScale::share) return {false, false, 0, 1};
  double low = std::numeric_limits<double>::infinity(), high = -low, smallest = low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value), high = std::max(high, value);
    if (value > 0) smallest = std::min(smallest, value);
  }
  if (low > high) return {};
  if (low < 0 && high > 0) {
    const double limit = std::max(-low, high);
    return {true, false, -limit, limit};
  }
  if (low >= 0 && high > 30 * smallest) return {false, true, std::max(smallest, high * 1e-8), high};
  if (low == high && low >= 0) return {false, false, 0, high > 0 ? high : 1};
  if (low == high) return {false, false, low - 0.5, high + 0.5};
  return {false, false, low, high};
}

std::string hex(png::Rgb color) { return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b); }

bool is_dark(png::Rgb color) { return 0.299 * color.r + 0.587 * color.g + 0.114 * color.b < 118; }

}  // namespace kvreplay::report
