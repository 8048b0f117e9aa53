#include "analysis/drawing/color_scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace kvreplay {
namespace {

// Both ends stand at the same lightness and chroma, which both hues reach within sRGB.
constexpr double kEndLightness = 0.40;
constexpr double kEndChroma = 0.155;
constexpr double kRedHue = 25.0 / 180 * std::numbers::pi;
constexpr double kBlueHue = 259.0 / 180 * std::numbers::pi;

constexpr double kLightest = 0.97, kDarkest = 0.32;
constexpr double kFirstHue = 105.0 / 180 * std::numbers::pi;
constexpr double kLastHue = 270.0 / 180 * std::numbers::pi;

/// Björn Ottosson's Oklab (2020) to sRGB.
Rgb from_oklab(double lightness, double a, double b) {
  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
  const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
  const double s = cube(lightness - 0.0894841775 * a - 1.2914855480 * b);
  return {srgb_byte(+4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          srgb_byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          srgb_byte(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

}  // namespace

Rgb diverging_color(double t) {
  if (std::isnan(t)) return kNoValueColor;
  if (t == 0) return kWhiteColor;
  const double size = std::min(std::abs(t), 1.0);
  const double hue = t > 0 ? kRedHue : kBlueHue;
  // Chroma rises early: small values show their sign, and the middle is not washed out.
  const double chroma = kEndChroma * size * (2 - size);
  return from_oklab(1 - (1 - kEndLightness) * size, chroma * std::cos(hue), chroma * std::sin(hue));
}

Rgb sequential_color(double t) {
  if (std::isnan(t)) return kNoValueColor;
  const double x = std::clamp(t, 0.0, 1.0);
  const double hue = kFirstHue + (kLastHue - kFirstHue) * x;
  // Chroma that stays within sRGB at every lightness of the scale.
  const double chroma = 0.04 + 0.06 * x + 0.04 * std::sin(std::numbers::pi * x);
  return from_oklab(kLightest - (kLightest - kDarkest) * x, chroma * std::cos(hue), chroma * std::sin(hue));
}

Rgb ColorScale::color(double value) const {
  const double t = at(value);
  const double along = flipped ? 1 - t : t;
  if (!colors.empty() && !std::isnan(along))
    return colors[static_cast<std::size_t>(std::lround(along * static_cast<double>(colors.size() - 1)))];
  return diverging ? diverging_color(2 * along - 1) : sequential_color(along);
}

std::string hex(Rgb color) { return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b); }

std::uint8_t srgb_byte(double light) {
  const double x = std::clamp(light, 0.0, 1.0);
  const double encoded = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
  return static_cast<std::uint8_t>(std::lround(255 * encoded));
}

double srgb_light(std::uint8_t encoded) {
  static const std::array<double, 256> lights = [] {
    std::array<double, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double share = static_cast<double>(i) / 255;
      values[i] = share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
    }
    return values;
  }();
  return lights[encoded];
}

double luminance(Rgb color) {
  return 0.2126 * srgb_light(color.r) + 0.7152 * srgb_light(color.g) + 0.0722 * srgb_light(color.b);
}

}  // namespace kvreplay
