#pragma once

#include "analysis/drawing/canvas.hpp"

#include <cstddef>
#include <filesystem>
#include <vector>

namespace kvreplay::png {

/// The picture as a PNG file's bytes, RGB of 8 bits.
std::vector<std::byte> png_bytes(const Canvas& canvas);

/// Writes the picture as RGB of 8 bits, whole or not at all. Throws InputError where it cannot be written.
void write_canvas(const std::filesystem::path& path, const Canvas& canvas);

}  // namespace kvreplay::png
