#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// Of ASCII letters; other bytes stay.
inline char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
inline std::string lower_case(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = lower(c);
  return low;
}

/// What stands between spaces, in lower case.
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

}  // namespace kvreplay::viewer
