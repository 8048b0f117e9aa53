#include "analysis/options/option_text.hpp"

#include "analysis/options/option.hpp"

namespace kvreplay {

OptionText::OptionText(const OptionFacts& option) : marked_(kMark + std::string(option.name)) {}

std::string OptionText::written(std::string_view before) const {
  std::string text;
  for (const char c : marked_) c == kMark ? text += before : text += c;
  return text;
}

}  // namespace kvreplay
