#pragma once

#include "analysis/drawing/color_map.hpp"

#include <array>
#include <optional>
#include <string_view>

namespace kvreplay::viewer {

using png::Rgb;

enum class ColorMap { viridis, magma, cividis, grey, rdbu, cool_warm };
inline constexpr std::array kColorMaps = {ColorMap::viridis, ColorMap::magma, ColorMap::cividis,
                                          ColorMap::grey,    ColorMap::rdbu,  ColorMap::cool_warm};

/// "viridis", "magma", "cividis", "grey", "RdBu", "cool-warm".
std::string_view name_of(ColorMap map);
std::optional<ColorMap> color_map_named(std::string_view name);
/// Whether its middle stands for 0. RdBu and cool-warm run from blue (low) to red (high).
bool is_diverging(ColorMap map);

/// 256 colours from the low end to the high one, sRGB. Grey takes even steps of CIE lightness; cool-warm
/// follows Moreland 2009; the others are tables (color_table_data.cpp).
const std::array<Rgb, 256>& color_table(ColorMap map);

/// The colour of t in [0, 1], linear in sRGB between the two nearest entries, as the shader finds it; beyond
/// [0, 1] that of the nearer end, NaN that of the low one.
Rgb color_of(ColorMap map, float t);

}  // namespace kvreplay::viewer
