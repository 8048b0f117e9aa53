#include "viewer/model/text_search.hpp"

#include "data/utf8.hpp"

#include <algorithm>

namespace kvreplay::viewer {
namespace {

/// The small letter of a capital, which has as many bytes; all others as they are.
char32_t small_of(char32_t code) {
  if (code >= 'A' && code <= 'Z') return code + 32;
  if (code >= 0xC0 && code <= 0xDE && code != 0xD7) return code + 32;
  if (code >= 0x391 && code <= 0x3A9 && code != 0x3A2) return code + 32;
  if (code >= 0x410 && code <= 0x42F) return code + 32;
  if (code >= 0x400 && code <= 0x40F) return code + 80;
  return code;
}

/// In small letters, byte by byte in the place of the original; whether it changed.
bool make_small(std::string& text) {
  bool changed = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = first_character(std::string_view(text).substr(at));
    const std::size_t length = c.bytes.size();
    const char32_t small = c.valid ? small_of(c.code) : c.code;
    if (small != c.code) {
      changed = true;
      if (length == 1) {
        text[at] = static_cast<char>(small);
      } else {
        text[at] = static_cast<char>(0xC0U | small >> 6);
        text[at + 1] = static_cast<char>(0x80U | (small & 0x3FU));
      }
    }
    at += length;
  }
  return changed;
}

}  // namespace

std::vector<TextMatch> find_in_tokens(std::span<const std::string> tokens, std::string_view typed) {
  std::vector<TextMatch> found;
  if (typed.empty()) return found;
  std::string text;
  std::vector<std::size_t> ends;  // of each token
  ends.reserve(tokens.size());
  for (const std::string& token : tokens) ends.push_back((text += token).size());
  std::string wanted(typed);
  if (!make_small(wanted))
    make_small(text);
  else
    wanted = typed;
  const auto token_of = [&](std::size_t byte) {
    return static_cast<Index>(std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin());
  };
  for (std::size_t at = text.find(wanted); at != std::string::npos;
       at = text.find(wanted, at + wanted.size()))
    found.push_back({token_of(at), token_of(at + wanted.size() - 1)});
  return found;
}

std::size_t next_match(std::span<const TextMatch> matches, Index from, bool forward) {
  const auto begins_before = [](const TextMatch& match, Index token) { return match.first < token; };
  if (forward) {
    const auto next = std::lower_bound(matches.begin(), matches.end(), from + 1, begins_before);
    return next == matches.end() ? 0 : static_cast<std::size_t>(next - matches.begin());
  }
  const auto at = std::lower_bound(matches.begin(), matches.end(), from, begins_before);
  return at == matches.begin() ? matches.size() - 1 : static_cast<std::size_t>(at - matches.begin()) - 1;
}

}  // namespace kvreplay::viewer
