#pragma once

#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Strokes that tell curves of one colour apart.
enum class Stroke { solid, dashed, dotted };

/// A line through the points in order, in a plot; NaN breaks it.
void draw_curve(Plot& plot, std::span<const double> x, std::span<const double> y, ImU32 color, Stroke stroke,
                float thickness);
/// A short piece of such a line from `from` to the right, as a key to it.
void draw_key(ImDrawList* list, ImVec2 from, float length, ImU32 color, Stroke stroke, float thickness);

/// A curve with its name; all that are labelled together have the same x.
struct NamedCurve {
  std::string name;
  std::vector<double> y;
  ImU32 color = 0;
};
/// Writes each name beside its curve where it meets neither another curve, another name nor the vertical line
/// at `avoid`; not at all where there is no such place.
void label_curves(Plot& plot, std::span<const double> x, std::span<const NamedCurve> curves, double avoid);

}  // namespace kvreplay::viewer
