#pragma once

#include "analysis/drawing/color_scale.hpp"
#include "sim/head_group.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace kvreplay {

/// Pixels [height, width], row by row, top first, as a PNG file's bytes, RGB of 8 bits: the same for the same
/// pixels. `fast` takes a quarter of the time and more bytes. Throws InputError where libpng cannot.
std::vector<std::byte> png_bytes(std::span<const Rgb> pixels, Index width, Index height, bool fast = false);

/// A matrix as such a picture: diverging colours that end at +-limit (0: all are white), `cell` x `cell`
/// pixels an entry, row 0 at the top, NaN grey.
std::vector<std::byte> heatmap_png(const Matrix<double>& values, double limit, Index cell = 1);

}  // namespace kvreplay
