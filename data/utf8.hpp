#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace kvreplay {

/// A character as it is read: its code point and bytes, or one byte that is no UTF-8.
struct Character {
  char32_t code = 0;
  std::string_view bytes;
  bool valid = true;
};

/// True for a continuation byte of a UTF-8 character.
constexpr bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

inline std::size_t characters_in(std::string_view utf8) {
  return utf8.size() - static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), continues_character));
}

/// The character that a text, not an empty one, begins with. Overlong forms, surrogates and what lies beyond
/// U+10FFFF are no characters.
inline Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const Character broken = {byte(0), text.substr(0, 1), false};
  if (byte(0) < 0x80) return {byte(0), text.substr(0, 1), true};
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < length) return broken;
  char32_t code = byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues_character(text[i])) return broken;
    code = code << 6 | (byte(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) return broken;
  return {code, text.substr(0, length), true};
}

}  // namespace kvreplay
