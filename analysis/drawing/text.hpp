#pragma once

#include "analysis/drawing/canvas.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::png {

// Printable ASCII, drawn from strokes. Any other character is drawn as one '?', a control character as a
// space.

inline constexpr Index kCapHeight = 7;     ///< of a capital or digit, times the scale
inline constexpr Index kLineAdvance = 11;  ///< from one line to the next, times the scale

enum class Align { left, center, right };

struct TextStyle {
  Index scale = 2;  ///< pixels per unit of the font
  Align align = Align::left;
  bool upwards = false;  ///< reads from bottom to top
};

/// Pixels from the start of the text to its end.
Index text_width(std::string_view text, Index scale);

/// Lines of at most `width` pixels, broken at spaces, inside a word only where the word alone is too wide.
/// No line at all for an empty text.
std::vector<std::string> wrap(std::string_view text, Index width, Index scale);

/// Draws one line. `at` lies at half the height of a capital and, along the line, where `align` says.
void draw_text(Canvas& canvas, Point at, std::string_view text, const TextStyle& style);

}  // namespace kvreplay::png
