#pragma once

#include "viewer/model/heatmap_image.hpp"

#include <array>
#include <imgui.h>

namespace kvreplay::viewer {

/// Sizes in points are those that go with text of this size.
inline constexpr float kTextPoints = 13;

/// The colours of everything but data, and the sizes, which follow the display's scale and the text's.
struct Theme {
  bool dark = true;
  float scale = 1;  ///< pixels a point, of which the text is kTextPoints high
  ImU32 window, panel, raised, border, text, dim, faint, accent, accent_soft, warning, error;
  ImU32 knob;                   ///< of sliders: their number is read on it
  ImU32 plot, grid;             ///< behind curves, and the lines there
  std::array<ImU32, 8> series;  ///< curves; told apart by colour-blind eyes too (after Okabe and Ito)
  HeatmapInk ink;

  float px(float points) const { return points * scale; }
};

const Theme& theme();
/// The colours alone, of the one or the other.
Theme theme_of(bool dark);
/// The colour of the name on a panel's tab.
ImU32 tab_ink(const Theme& theme, bool in_front, bool hovered);
/// Contrast ratio of two colours after WCAG 2, 1 (none) to 21.
double contrast(ImU32 a, ImU32 b);
/// The colour `ink`, mixed with white or black as far as needed for a contrast of `least` with the background
/// `behind`.
ImU32 readable(ImU32 ink, ImU32 behind, double least = 4.5);
/// Sets colours and sizes for all that is drawn from now on, ImGui's own widgets included: a display of so
/// many pixels a point, and text of so many points, with which all sizes grow.
void use_theme(bool dark, float pixels_per_point, float text_points = kTextPoints);

inline ImU32 to_imgui(Rgb color) { return IM_COL32(color.r, color.g, color.b, 255); }
/// A colour with another opacity, 0..1.
ImU32 faded(ImU32 color, float opacity);
/// `share` of the way from one colour to the other.
ImU32 mixed(ImU32 from, ImU32 to, float share);

}  // namespace kvreplay::viewer
