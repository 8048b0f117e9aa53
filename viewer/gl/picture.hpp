#pragma once

#include "viewer/model/color_table.hpp"
#include "viewer/model/layout.hpp"

#include <filesystem>
#include <vector>

namespace kvreplay::viewer {

/// Writes pixels [height, width], top first, as a PNG, whole or not at all. Throws InputError.
void write_picture(const std::filesystem::path& path, const std::vector<Rgb>& pixels, int width, int height);
/// The same of a part of the frame that was drawn last.
void write_area(const std::filesystem::path& path, const Area& area, int width, int height);

}  // namespace kvreplay::viewer
