#pragma once

#include <string>

namespace kvreplay::viewer {

/// The current toolkit's last frame as a picture of shapes, for papers: SVG, `scale` pixels of the frame a
/// point. Shapes are polygons and letters outlines, so that no reader needs the fonts; textures (heat maps)
/// are embedded as PNG, a texel each pixel. For frames that were drawn without anti-aliasing: its fringes
/// would be polygons of their own. Needs the frame's OpenGL context current.
std::string svg_of_frame(float scale);

}  // namespace kvreplay::viewer
