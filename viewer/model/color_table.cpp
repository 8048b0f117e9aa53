#include "viewer/model/color_table.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

namespace kvreplay::viewer {
namespace {

// 256 colours each from the low end to the high one, sRGB, six hexadecimal digits a colour.
extern const std::string_view kViridisHex, kMagmaHex, kCividisHex;

// viridis, magma: Stéfan van der Walt, Nathaniel Smith and Eric Firing for matplotlib, dedicated to the
// public domain (CC0).

const std::string_view kViridisHex =
    "44015444025645045745055946075a46085c460a5d460b5e470d60470e61471063471164471365481467481668481769"
    "48186a481a6c481b6d481c6e481d6f481f70482071482173482374482475482576482677482878482979472a7a472c7a"
    "472d7b472e7c472f7d46307e46327e46337f463480453581453781453882443983443a83443b84433d84433e85423f85"
    "4240864241864142874144874045884046883f47883f48893e49893e4a893e4c8a3d4d8a3d4e8a3c4f8a3c508b3b518b"
    "3b528b3a538b3a548c39558c39568c38588c38598c375a8c375b8d365c8d365d8d355e8d355f8d34608d34618d33628d"
    "33638d32648e32658e31668e31678e31688e30698e306a8e2f6b8e2f6c8e2e6d8e2e6e8e2e6f8e2d708e2d718e2c718e"
    "2c728e2c738e2b748e2b758e2a768e2a778e2a788e29798e297a8e297b8e287c8e287d8e277e8e277f8e27808e26818e"
    "26828e26828e25838e25848e25858e24868e24878e23888e23898e238a8d228b8d228c8d228d8d218e8d218f8d21908d"
    "21918c20928c20928c20938c1f948c1f958b1f968b1f978b1f988b1f998a1f9a8a1e9b8a1e9c891e9d891f9e891f9f88"
    "1fa0881fa1881fa1871fa28720a38620a48621a58521a68522a78522a88423a98324aa8325ab8225ac8226ad8127ad81"
    "28ae8029af7f2ab07f2cb17e2db27d2eb37c2fb47c31b57b32b67a34b67935b77937b87838b9773aba763bbb753dbc74"
    "3fbc7340bd7242be7144bf7046c06f48c16e4ac16d4cc26c4ec36b50c46a52c56954c56856c66758c7655ac8645cc863"
    "5ec96260ca6063cb5f65cb5e67cc5c69cd5b6ccd5a6ece5870cf5773d05675d05477d1537ad1517cd2507fd34e81d34d"
    "84d44b86d54989d5488bd6468ed64590d74393d74195d84098d83e9bd93c9dd93ba0da39a2da37a5db36a8db34aadc32"
    "addc30b0dd2fb2dd2db5de2bb8de29bade28bddf26c0df25c2df23c5e021c8e020cae11fcde11dd0e11cd2e21bd5e21a"
    "d8e219dae319dde318dfe318e2e418e5e419e7e419eae51aece51befe51cf1e51df4e61ef6e620f8e621fbe723fde725";

const std::string_view kMagmaHex =
    "00000401000501010601010802010902020b02020d03030f03031204041405041606051806051a07061c08071e090720"
    "0a08220b09240c09260d0a290e0b2b100b2d110c2f120d31130d34140e36150e38160f3b180f3d19103f1a10421c1044"
    "1d11471e114920114b21114e22115024125325125527125829115a2a115c2c115f2d11612f1163311165331067341069"
    "36106b38106c390f6e3b0f703d0f713f0f72400f74420f75440f764510774710784910784a10794c117a4e117b4f127b"
    "51127c52137c54137d56147d57157e59157e5a167e5c167f5d177f5f187f601880621980641a80651a80671b80681c81"
    "6a1c816b1d816d1d816e1e81701f81721f817320817521817621817822817922827b23827c23827e2482802582812581"
    "8326818426818627818827818928818b29818c29818e2a81902a81912b81932b80942c80962c80982d80992d809b2e7f"
    "9c2e7f9e2f7fa02f7fa1307ea3307ea5317ea6317da8327daa337dab337cad347cae347bb0357bb2357bb3367ab5367a"
    "b73779b83779ba3878bc3978bd3977bf3a77c03a76c23b75c43c75c53c74c73d73c83e73ca3e72cc3f71cd4071cf4070"
    "d0416fd2426fd3436ed5446dd6456cd8456cd9466bdb476adc4869de4968df4a68e04c67e24d66e34e65e44f64e55064"
    "e75263e85362e95462ea5661eb5760ec5860ed5a5fee5b5eef5d5ef05f5ef1605df2625df2645cf3655cf4675cf4695c"
    "f56b5cf66c5cf66e5cf7705cf7725cf8745cf8765cf9785df9795df97b5dfa7d5efa7f5efa815ffb835ffb8560fb8761"
    "fc8961fc8a62fc8c63fc8e64fc9065fd9266fd9467fd9668fd9869fd9a6afd9b6bfe9d6cfe9f6dfea16efea36ffea571"
    "fea772fea973feaa74feac76feae77feb078feb27afeb47bfeb67cfeb77efeb97ffebb81febd82febf84fec185fec287"
    "fec488fec68afec88cfeca8dfecc8ffecd90fecf92fed194fed395fed597fed799fed89afdda9cfddc9efddea0fde0a1"
    "fde2a3fde3a5fde5a7fde7a9fde9aafdebacfcecaefceeb0fcf0b2fcf2b4fcf4b6fcf6b8fcf7b9fcf9bbfcfbbdfcfdbf";

// cividis: Jamie R. Nuñez, Christopher R. Anderton and Ryan S. Renslow, "Optimizing colormaps with
// consideration for color vision deficiency to enable accurate interpretation of scientific data", PLoS ONE
// 13 (2018), with this notice:
//
// Copyright (c) 2017, Battelle Memorial Institute
//
// 1. Battelle Memorial Institute (hereinafter Battelle) hereby grants permission to any person or entity
// lawfully obtaining a copy of this software and associated documentation files (hereinafter "the Software")
// to redistribute and use the Software in source and binary forms, with or without modification. Such person
// or entity may use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the
// Software, and may permit others to do so, subject to the following conditions:
// + Redistributions of source code must retain the above copyright notice, this list of conditions and the
//   following disclaimers.
// + Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the
//   following disclaimer in the documentation and/or other materials provided with the distribution.
// + Other than as used herein, neither the name Battelle Memorial Institute or Battelle may be used in any
//   form whatsoever without the express written consent of Battelle.
//
// 2. THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED
// WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A
// PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL BATTELLE OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT,
// INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO,
// PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION)
// HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING
// NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE
// POSSIBILITY OF SUCH DAMAGE.
const std::string_view kCividisHex =
    "00224e00234f00245100255300255400265600275800285900285b00295d002a5f002a61002b62002c64002c66002d68"
    "002e6a002e6c002f6d00306f0030700031700031710132710533710833700c34700f357012357014367016377018376f"
    "1a386f1c396f1e3a6f203a6f213b6e233c6e243c6e263d6e273e6e293f6e2a3f6d2b406d2d416d2e416d2f426d31436d"
    "32436d33446d34456c35456c36466c38476c39486c3a486c3b496c3c4a6c3d4a6c3e4b6c3f4c6c404c6c414d6c424e6c"
    "434e6c444f6c45506c46516c47516c48526c49536c4a536c4b546c4c556c4d556c4e566c4f576c50576c51586d52596d"
    "535a6d545a6d555b6d555c6d565c6d575d6d585e6d595e6e5a5f6e5b606e5c616e5d616e5e626e5e636f5f636f60646f"
    "61656f62656f636670646770656870656870666970676a71686a71696b716a6c716b6d726c6d726c6e726d6f726e6f73"
    "6f70737071737172747272747273747374757474757575757676767777767777777878777979777a7a787b7a787c7b78"
    "7d7c787e7c787e7d787f7e78807f78817f788280798381798482798582798683798784788885788985788a86788b8778"
    "8c88788d88788e89788f8a78908b78918b78928c78928d78938e78948e77958f779690779791779892779992779a9376"
    "9b94769c95769d95769e96769f9775a09875a19975a29975a39a74a49b74a59c74a69c74a79d73a89e73a99f73aaa073"
    "aba072aca172ada272aea371afa471b0a571b1a570b3a670b4a76fb5a86fb6a96fb7a96eb8aa6eb9ab6dbaac6dbbad6d"
    "bcae6cbdae6cbeaf6bbfb06bc0b16ac1b26ac2b369c3b369c4b468c5b568c6b667c7b767c8b866c9b965cbb965ccba64"
    "cdbb63cebc63cfbd62d0be62d1bf61d2c060d3c05fd4c15fd5c25ed6c35dd7c45cd9c55cdac65bdbc75adcc859ddc858"
    "dec958dfca57e0cb56e1cc55e2cd54e4ce53e5cf52e6d051e7d150e8d24fe9d34eead34cebd44bedd54aeed649efd748"
    "f0d846f1d945f2da44f3db42f5dc41f6dd3ff7de3ef8df3cf9e03afbe138fce236fde334fee434fee535fee636fee838";

// RdBu, reversed, between its eleven colours linear in sRGB:
//
// Apache-Style Software License for ColorBrewer software and ColorBrewer Color Schemes
// Copyright (c) 2002 Cynthia Brewer, Mark Harrower, and The Pennsylvania State University.
// Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in
// compliance with the License. You may obtain a copy of the License at
// http://www.apache.org/licenses/LICENSE-2.0
// Unless required by applicable law or agreed to in writing, software distributed under the License is
// distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and limitations under the License.
constexpr std::string_view kRdBuStops = "0530612166ac4393c392c5ded1e5f0f7f7f7fddbc7f4a582d6604db2182b67001f";

using Table = std::array<Rgb, 256>;
using Vector3 = std::array<double, 3>;

std::uint8_t digit(char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

Rgb hex_color(std::string_view hex, std::size_t number) {
  const auto byte = [&](std::size_t at) {
    return static_cast<std::uint8_t>(digit(hex[at]) * 16 + digit(hex[at + 1]));
  };
  return {byte(6 * number), byte(6 * number + 2), byte(6 * number + 4)};
}

Table from_hex(std::string_view hex) {
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = hex_color(hex, i);
  return table;
}

/// `share` of the way from one colour to another, linear in sRGB.
Rgb between(Rgb from, Rgb to, float share) {
  const auto part = [&](std::uint8_t low, std::uint8_t high) {
    const float level = low + (static_cast<float>(high) - static_cast<float>(low)) * share;
    return static_cast<std::uint8_t>(level + 0.5F);
  };
  return {part(from.r, to.r), part(from.g, to.g), part(from.b, to.b)};
}

Table between_stops(std::string_view hex) {
  const std::size_t stops = hex.size() / 6;
  const float last = static_cast<float>(stops) - 1;
  Table table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const float place = last * static_cast<float>(i) / 255;
    const auto below = static_cast<std::size_t>(std::min(place, last - 1));
    table[i] = between(hex_color(hex, below), hex_color(hex, below + 1), place - static_cast<float>(below));
  }
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
  const double r = srgb_light(color.r), g = srgb_light(color.g), b = srgb_light(color.b);
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
  static const std::array<Table, kColorMaps.size()> tables = {from_hex(kViridisHex),     from_hex(kMagmaHex),
                                                              from_hex(kCividisHex),     grey_table(),
                                                              between_stops(kRdBuStops), cool_warm_table()};
  return tables[static_cast<std::size_t>(map)];
}

Rgb color_of(Coloring colors, float t) {
  const Table& table = color_table(colors.map);
  const float within = t > 0 ? std::min(t, 1.0F) : 0.0F;
  const float position = (colors.reversed ? 1 - within : within) * 255.0F;
  const std::size_t below = std::min(static_cast<std::size_t>(position), std::size_t{254});
  return between(table[below], table[below + 1], position - static_cast<float>(below));
}

}  // namespace kvreplay::viewer
