#include "viewer/model/color_table.hpp"

#include "analysis/drawing/srgb.hpp"
#include "viewer/model/color_table_data.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvreplay::viewer {
namespace {

using drawing::srgb_byte;
using drawing::srgb_light;
using Table = std::array<Rgb, 256>;
using Vector3 = std::array<double, 3>;

std::uint8_t digit(char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

Table from_hex(std::string_view hex) {
  const auto byte = [&](std::size_t at) {
    return static_cast<std::uint8_t>(digit(hex[at]) * 16 + digit(hex[at + 1]));
  };
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = {byte(6 * i), byte(6 * i + 2), byte(6 * i + 4)};
  return table;
}

/// CIE f^-1 and f, by which L*, a* and b* depend on X, Y and Z.
double cie_inverse(double f) {
  return f > 6.0 / 29 ? f * f * f : (f - 4.0 / 29) * 3 * (6.0 / 29) * (6.0 / 29);
}
double cie(double t) {
  return t > std::pow(6.0 / 29, 3) ? std::cbrt(t) : t / (3 * (6.0 / 29) * (6.0 / 29)) + 4.0 / 29;
}

/// Even steps of CIE lightness from black to white.
Table grey_table() {
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double lightness = 100.0 * static_cast<double>(i) / 255;
    const std::uint8_t level = srgb_byte(cie_inverse((lightness + 16) / 116));
    table[i] = {level, level, level};
  }
  return table;
}

// Kenneth Moreland, "Diverging color maps for scientific visualization" (2009): straight lines in Msh, which
// is CIELAB in polar coordinates, from blue over white to red.
constexpr Vector3 kWhitePoint = {0.9505, 1.0, 1.0890};  // D65

Vector3 msh_of(Rgb color) {
  const double r = srgb_light(color.r / 255.0), g = srgb_light(color.g / 255.0),
               b = srgb_light(color.b / 255.0);
  const double fx = cie((0.4124 * r + 0.3576 * g + 0.1805 * b) / kWhitePoint[0]);
  const double fy = cie((0.2126 * r + 0.7152 * g + 0.0722 * b) / kWhitePoint[1]);
  const double fz = cie((0.0193 * r + 0.1192 * g + 0.9505 * b) / kWhitePoint[2]);
  const double lightness = 116 * fy - 16, a_star = 500 * (fx - fy), b_star = 200 * (fy - fz);
  const double m = std::sqrt(lightness * lightness + a_star * a_star + b_star * b_star);
  return {m, std::acos(lightness / m), std::atan2(b_star, a_star)};
}

Rgb rgb_of_msh(const Vector3& msh) {
  const double lightness = msh[0] * std::cos(msh[1]);
  const double a_star = msh[0] * std::sin(msh[1]) * std::cos(msh[2]);
  const double b_star = msh[0] * std::sin(msh[1]) * std::sin(msh[2]);
  const double fy = (lightness + 16) / 116;
  const double x = kWhitePoint[0] * cie_inverse(fy + a_star / 500);
  const double y = kWhitePoint[1] * cie_inverse(fy);
  const double z = kWhitePoint[2] * cie_inverse(fy - b_star / 200);
  return {srgb_byte(3.2406 * x - 1.5372 * y - 0.4986 * z), srgb_byte(-0.9689 * x + 1.8758 * y + 0.0415 * z),
          srgb_byte(0.0557 * x - 0.2040 * y + 1.0570 * z)};
}

/// The hue with which a line from a saturated colour reaches an unsaturated one of size m.
double spun_hue(const Vector3& saturated, double m) {
  if (saturated[0] >= m) return saturated[2];
  const double spin =
      saturated[1] * std::sqrt(m * m - saturated[0] * saturated[0]) / (saturated[0] * std::sin(saturated[1]));
  return saturated[2] > -std::numbers::pi / 3 ? saturated[2] + spin : saturated[2] - spin;
}

Table cool_warm_table() {
  const Vector3 blue = msh_of({59, 76, 192}), red = msh_of({180, 4, 38});
  const double middle = std::max({blue[0], red[0], 88.0});
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double t = static_cast<double>(i) / 255;
    const Vector3& end = t < 0.5 ? blue : red;
    const double share = std::abs(2 * t - 1);  // of the end, the rest is white
    const Vector3 white = {middle, 0, spun_hue(end, middle)};
    Vector3 msh;
    for (std::size_t c = 0; c < 3; ++c) msh[c] = share * end[c] + (1 - share) * white[c];
    table[i] = rgb_of_msh(msh);
  }
  return table;
}

}  // namespace

const std::array<Rgb, 256>& color_table(ColorMap map) {
  static const std::array<Table, kColorMaps.size()> tables = {from_hex(kViridisHex), from_hex(kMagmaHex),
                                                              from_hex(kCividisHex), grey_table(),
                                                              from_hex(kRdBuHex),    cool_warm_table()};
  return tables[static_cast<std::size_t>(map)];
}

Rgb color_of(ColorMap map, float t) {
  const Table& table = color_table(map);
  const float position = (t > 0 ? std::min(t, 1.0F) : 0.0F) * 255.0F;
  const std::size_t below = std::min(static_cast<std::size_t>(position), std::size_t{254});
  const float share = position - static_cast<float>(below);
  const auto mixed = [&](std::uint8_t low, std::uint8_t high) {
    const float level = low + (static_cast<float>(high) - static_cast<float>(low)) * share;
    return static_cast<std::uint8_t>(level + 0.5F);
  };
  const Rgb low = table[below], high = table[below + 1];
  return {mixed(low.r, high.r), mixed(low.g, high.g), mixed(low.b, high.b)};
}

}  // namespace kvreplay::viewer
