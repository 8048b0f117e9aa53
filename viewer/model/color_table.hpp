#pragma once

#include "analysis/drawing/color_scale.hpp"
#include "data/facts_table.hpp"

#include <array>
#include <string_view>

namespace kvreplay::viewer {

enum class ColorMap { viridis, magma, cividis, grey, rdbu, cool_warm };
struct ColorMapFacts {
  ColorMap id;
  std::string_view name;
};
/// RdBu and cool-warm run from blue (low) to red (high), their middle stands for 0.
inline constexpr auto kColorMaps = facts_table<ColorMapFacts>({{ColorMap::viridis, "viridis"},
                                                               {ColorMap::magma, "magma"},
                                                               {ColorMap::cividis, "cividis"},
                                                               {ColorMap::grey, "grey"},
                                                               {ColorMap::rdbu, "RdBu"},
                                                               {ColorMap::cool_warm, "cool-warm"}});
constexpr std::string_view name_of(ColorMap map) { return kColorMaps[map].name; }

/// 256 colours from the low end to the high one, sRGB. Grey takes even steps of CIE lightness; cool-warm
/// follows Moreland 2009; the others are tables.
const std::array<Rgb, 256>& color_table(ColorMap map);

/// A colour map and the end that it begins with.
struct Coloring {
  // As a map says itself, from its low end on. NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Coloring(ColorMap colors = ColorMap::viridis, bool from_high = false)
      : map(colors), reversed(from_high) {}
  ColorMap map;
  bool reversed;  ///< the lowest value has the map's last colour
  bool operator==(const Coloring&) const = default;
};

/// The colour of t in [0, 1], linear in sRGB between the two nearest entries, as the shader finds it; beyond
/// [0, 1] that of the nearer end, NaN that of the low one.
Rgb color_of(Coloring colors, float t);

}  // namespace kvreplay::viewer
