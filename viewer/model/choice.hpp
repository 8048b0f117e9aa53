#pragma once

#include <cctype>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// The small ones of ASCII letters; other bytes stay.
inline char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
inline std::string lower_case(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = lower(c);
  return low;
}

/// Words between spaces, in lower case.
inline std::vector<std::string> typed_words(std::string_view typed) {
  std::vector<std::string> words(1);
  for (const char c : typed) {
    if (c != ' ')
      words.back() += lower(c);
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// One entry of a menu.
struct Choice {
  std::string name;             ///< as commands and tables have it
  std::string plain = {};       ///< the same in plain words, which menus say first; empty: the name says it
  std::string tip = {};         ///< more, on its own; empty: none
  std::string_view group = {};  ///< heading above those of one group, which follow each other
  bool enabled = true;
};

/// Menus with more entries than this have a field that leaves those that match.
inline constexpr std::size_t kMostUnfiltered = 12;

/// The numbers of those in whose name, plain words or tip every word typed occurs, in their order; upper and
/// lower case are one. All where nothing is typed.
std::vector<std::size_t> matching_choices(std::span<const Choice> choices, std::string_view typed);

}  // namespace kvreplay::viewer
