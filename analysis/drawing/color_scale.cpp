#include "analysis/drawing/color_scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

std::string hex(png::Rgb color) { return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b); }

bool is_dark(png::Rgb color) { return 0.299 * color.r + 0.587 * color.g + 0.114 * color.b < 118; }

}  // namespace kvreplay::report
