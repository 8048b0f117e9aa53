#include "viewer/model/token_text.hpp"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace kvreplay::viewer {

bool is_space(char32_t code) {
  return code == ' ' || code == 0xA0 || (code >= 0x2000 && code <= 0x200A) || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

namespace {

/// Control characters, and those that change the direction or the look of others without one of their own.
bool is_invisible(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

}  // namespace

std::string sign_of(const Character& character) {
  if (!character.valid) return fmt::format("\\x{:02X}", static_cast<unsigned>(character.code));
  if (character.code == '\n' || character.code == 0x2028 || character.code == 0x2029)
    return std::string(kLineBreakSign);
  if (character.code == '\t') return "→";
  if (character.code == '\r') return "\\r";
  const auto code = static_cast<unsigned>(character.code);
  if (is_invisible(character.code))
    return code < 0x100 ? fmt::format("\\x{:02X}", code) : fmt::format("\\u{:04X}", code);
  return std::string(character.bytes);
}

std::string visible_text(std::string_view text, std::size_t most) {
  std::vector<Character> characters;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(characters.back().bytes.size()))
    characters.push_back(first_character(rest));
  const auto blank = [&](std::size_t i) { return characters[i].valid && is_space(characters[i].code); };
  std::size_t first = 0, end = characters.size();
  while (first < end && blank(first)) ++first;
  while (end > first && blank(end - 1)) --end;

  std::string shown, cut;  // `cut` is as much as leaves room for the ellipsis
  std::size_t length = 0;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const std::string sign = i < first || i >= end ? "·" : sign_of(characters[i]);
    length += characters_in(sign);
    if (length > most) return most == 0 ? "" : cut + "…";
    shown += sign;
    if (length < most) cut = shown;
  }
  return shown;
}

std::string token_text(const std::optional<TokenLabels>& labels, Index position, std::size_t most) {
  if (!labels || position < 0 || position >= std::ssize(labels->text)) return "";
  return visible_text(labels->text[position], most);
}

}  // namespace kvreplay::viewer
