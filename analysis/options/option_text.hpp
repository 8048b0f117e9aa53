#pragma once

#include "data/error.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

// Lines that name options. The libraries name an option by its concept ("sinks and recent: expected at most
// ..."); whoever shows the line writes it as it is written there: a command line puts dashes before it.

namespace kvreplay {

struct OptionFacts;

class OptionText {
 public:
  OptionText(std::string line) : marked_(std::move(line)) {}  // NOLINT: a line that names none
  OptionText(const char* line) : marked_(line) {}             // NOLINT
  OptionText(const OptionFacts& option);                      // NOLINT: its name

  /// "sinks and recent: ..".
  std::string plain() const { return written(""); }
  /// "--sinks and --recent: ..".
  std::string dashed() const { return written("--"); }
  /// With a mark before each option, so that it stays one within another line.
  const std::string& marked() const { return marked_; }

  /// The same of an option that is called `as` here.
  OptionText naming(std::string_view option, std::string_view as) const;

  static constexpr char kMark = '\x1a';

 private:
  std::string written(std::string_view before) const;

  std::string marked_;
};

}  // namespace kvreplay

template <>
struct fmt::formatter<kvreplay::OptionText> : fmt::formatter<std::string> {
  auto format(const kvreplay::OptionText& text, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(text.marked(), context);
  }
};
template <>
struct fmt::formatter<kvreplay::OptionFacts> : fmt::formatter<kvreplay::OptionText> {};

namespace kvreplay {

/// fmt::format(); options and texts among the arguments stay what they are.
template <class... Arguments>
OptionText option_text(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return fmt::format(format, std::forward<Arguments>(arguments)...);
}

/// "1 layer", "2 layers".
inline std::string counted(std::ptrdiff_t n, const char* one) {
  return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s");
}

/// An InputError about options; what() is the plain line.
class OptionError : public InputError {
 public:
  explicit OptionError(OptionText line) : InputError(line.plain()), line_(std::move(line)) {}
  OptionError(const OptionText& what, const OptionText& expected, const std::string& found)
      : OptionError(option_text("{}: expected {}, found {}", what, expected, found)) {}
  const OptionText& line() const { return line_; }

 private:
  OptionText line_;
};

}  // namespace kvreplay
