#include "viewer/model/choice.hpp"

#include <algorithm>

namespace kvreplay::viewer {

std::vector<std::size_t> matching_choices(std::span<const Choice> choices, std::string_view typed) {
  const std::vector<std::string> words = typed_words(typed);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::string text =
        lower_case(choices[i].name) + "\n" + lower_case(choices[i].plain) + "\n" + lower_case(choices[i].tip);
    const auto occurs = [&](const std::string& word) { return text.find(word) != std::string::npos; };
    if (std::all_of(words.begin(), words.end(), occurs)) found.push_back(i);
  }
  return found;
}

}  // namespace kvreplay::viewer
