#include "analysis/report/figure_scale.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::report {

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

Axis figure_axis(std::string label, FigureScale scale, std::span<const double> values) {
  switch (scale) {
    case FigureScale::share:
      return {std::move(label), 0, 1, false};
    case FigureScale::correlation: {
      const Axis axis = linear_axis(std::move(label), values, false);
      return {axis.label, std::max(axis.low, -1.0), std::min(axis.high, 1.0), false};
    }
    case FigureScale::log:
      return log_axis(std::move(label), values);
    case FigureScale::linear:
    case FigureScale::signed_log:
    case FigureScale::gain:
      break;
  }
  return linear_axis(std::move(label), values, true);
}

}  // namespace kvreplay::report
