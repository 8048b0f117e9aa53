#include "analysis/drawing/color_scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

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

bool is_dark(png::Rgb color) {
  const auto linear = [](std::uint8_t part) {
    const double c = part / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b) < 0.179;
}

}  // namespace kvreplay::report
