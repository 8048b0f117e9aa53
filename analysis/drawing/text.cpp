#include "analysis/drawing/text.hpp"

#include "data/utf8.hpp"

#include <stb/stb_easy_font.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace kvreplay::png {
namespace {

struct Segment {
  Point from, to;
};

/// In units of the font, the top of a capital at y = 0.
struct Glyph {
  Index advance = 0;
  std::vector<Segment> segments;
};

constexpr char kFirst = ' ', kLast = '~';
constexpr Index kSide = 16;  // no glyph reaches further
constexpr Index kAfter = 2;  // empty columns at the end of an advance
using Bitmap = std::array<std::array<bool, kSide>, kSide>;

Bitmap bitmap_of(char c) {
  Bitmap bitmap{};
  std::string text(1, c);
  std::array<std::byte, 64 * 32> quads{};  // 4 corners of 16 bytes each; a glyph has at most 18
  const int count = stb_easy_font_print(0, 0, text.data(), nullptr, quads.data(), int{quads.size()});
  for (int i = 0; i < count; ++i) {
    std::array<float, 2> low{}, high{};
    std::memcpy(low.data(), quads.data() + 64 * i, sizeof low);
    std::memcpy(high.data(), quads.data() + 64 * i + 32, sizeof high);
    for (auto y = static_cast<std::size_t>(low[1]); y < static_cast<std::size_t>(high[1]); ++y)
      for (auto x = static_cast<std::size_t>(low[0]); x < static_cast<std::size_t>(high[0]); ++x)
        bitmap.at(y).at(x) = true;
  }
  return bitmap;
}

/// Joins the centres of neighbouring pixels, across a corner only where no side joins them: strokes stay
/// smooth at every scale and angle, where the font's own squares show their steps.
Glyph glyph_of(char c) {
  const Bitmap bitmap = bitmap_of(c);
  const auto set = [&bitmap](Index x, Index y) {
    return x >= 0 && y >= 0 && x < kSide && y < kSide && bitmap[std::size_t(y)][std::size_t(x)];
  };
  std::string text(1, c);
  Glyph glyph{stb_easy_font_width(text.data()), {}};
  for (Index y = 0; y < kSide; ++y) {
    for (Index x = 0; x < kSide; ++x) {
      if (!set(x, y)) continue;
      const Point here{static_cast<double>(x) + 0.5, static_cast<double>(y) + 0.5};
      glyph.segments.push_back({here, here});
      if (set(x + 1, y)) glyph.segments.push_back({here, {here.x + 1, here.y}});
      if (set(x, y + 1)) glyph.segments.push_back({here, {here.x, here.y + 1}});
      for (const Index step : {-1, 1}) {
        if (set(x + step, y + 1) && !set(x + step, y) && !set(x, y + 1))
          glyph.segments.push_back({here, {here.x + static_cast<double>(step), here.y + 1}});
      }
    }
  }
  return glyph;
}

const Glyph& glyph(char c) {
  static const std::vector<Glyph> glyphs = [] {
    std::vector<Glyph> all;
    for (char each = kFirst; each <= kLast; ++each) all.push_back(glyph_of(each));
    return all;
  }();
  return glyphs[c - kFirst];
}

/// One character that the font has for each of the text's.
std::string drawable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (continues_character(c)) continue;
    const auto byte = static_cast<unsigned char>(c);
    out += byte >= 0x7F ? '?' : byte < kFirst ? ' ' : c;
  }
  return out;
}

}  // namespace

Index text_width(std::string_view text, Index scale) {
  Index width = 0;
  for (const char c : drawable(text)) width += glyph(c).advance;
  return std::max<Index>(width - kAfter, 0) * scale;
}

std::vector<std::string> wrap(std::string_view text, Index width, Index scale) {
  std::vector<std::string> lines;
  std::string rest = drawable(text);
  while (true) {
    rest.erase(0, rest.find_first_not_of(' '));
    if (rest.empty()) return lines;
    std::size_t fits = 1;
    while (fits < rest.size() && text_width(rest.substr(0, fits + 1), scale) <= width) ++fits;
    if (fits < rest.size() && rest[fits] != ' ') {
      const std::size_t space = rest.rfind(' ', fits);
      if (space != std::string::npos) fits = space;
    }
    std::string line = rest.substr(0, fits);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
    rest.erase(0, fits);
  }
}

void draw_text(Canvas& canvas, Point at, std::string_view text, const TextStyle& style) {
  const auto scale = static_cast<double>(style.scale);
  const auto width = static_cast<double>(text_width(text, style.scale));
  double x = style.align == Align::left ? 0 : style.align == Align::center ? -width / 2 : -width;
  const double y = -static_cast<double>(kCapHeight) / 2 * scale;
  const auto place = [&](Point p) {
    const double along = x + p.x * scale, down = y + p.y * scale;
    return style.upwards ? Point{at.x + down, at.y - along} : Point{at.x + along, at.y + down};
  };
  for (const char c : drawable(text)) {
    for (const Segment& segment : glyph(c).segments)
      canvas.stroke(place(segment.from), place(segment.to), 0.9 * scale, kInk);
    x += static_cast<double>(glyph(c).advance) * scale;
  }
}

}  // namespace kvreplay::png
