#pragma once

#include "analysis/png/canvas.hpp"

#include <filesystem>

namespace kvreplay::png {

/// Writes the picture as RGB of 8 bits, whole or not at all. Throws InputError where it cannot be written.
void write_canvas(const std::filesystem::path& path, const Canvas& canvas);

}  // namespace kvreplay::png
