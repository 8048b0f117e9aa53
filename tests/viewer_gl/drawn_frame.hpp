#pragma once

#include "viewer/gl/headless_host.hpp"
#include "viewer/model/layout.hpp"

#include <string>
#include <vector>

// What is wrong with a frame that was drawn, read from what the toolkit drew: no widget has to help.

namespace kvreplay::test {

/// A row of letters side by side, in pixels.
struct DrawnText {
  std::string text;  ///< what is seen of it: letters outside their window's clip are not
  std::string window;
  viewer::Area area;
};
/// Of the last frame of the current context, in the order of drawing.
std::vector<DrawnText> drawn_texts();

/// A line for each text whose letters stand out too little from what lies behind them in `pixels`, the last
/// frame's, `width` a row: below `least`, after WCAG 2. Faded text, as of what cannot be used, is left
/// out.
std::vector<std::string> contrast_defects(const std::vector<Rgb>& pixels, int width, double least);

/// A line for each defect: letters that a box or a window cuts off at a side (from above or below only where
/// the window cannot be scrolled there), contents wider than their window or their column, texts over each
/// other, and texts under something opaque. Empty where all is well.
std::vector<std::string> layout_defects();

}  // namespace kvreplay::test
