#pragma once

#include "viewer/model/layout.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <span>
#include <string>

// The pictures of a contact sheet that is drawn as one heatmap.

namespace kvreplay::viewer {

/// True if any part of a picture was in view in the last frame; true for all before the first frame.
bool picture_in_view(const HeatmapView& view, const SheetLayout& layout, Index number);
/// Frames a picture, and writes as many of the lines into its upper right as it has room for.
void frame_picture(const HeatmapView& view, const SheetLayout& layout, Index number, bool selected,
                   bool hovered, std::span<const std::string> lines);

}  // namespace kvreplay::viewer
