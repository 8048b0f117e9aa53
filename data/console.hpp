#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What programs say to a terminal. Names come from files and folders that anybody may have written: none of
// them steers the terminal, splits a line or makes it endless.

namespace kvreplay {

/// A text that can be shown anywhere: control characters, and those that turn text around, are written as
/// "\n", "\x1b" or "\u202e"; what is no UTF-8 becomes U+FFFD; of what has more than `most` bytes the middle
/// is left out.
std::string displayable(std::string_view text, std::size_t most = std::string_view::npos);

/// The names that a mistyped one may have meant, the nearest first: small edit distance, or one begins with
/// the other. Empty where none comes near.
std::vector<std::string> nearest_names(std::string_view given, const std::vector<std::string>& names);
/// "; did you mean 'a' or 'b'?", or nothing where none comes near.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& names);

/// "a, b and 3 more": the first `most` of some names.
std::string first_names(std::span<const std::string> names, std::size_t most);

/// Quotes a word for a POSIX shell if necessary. Below: joins the words of a command into one line.
std::string shell_word(const std::string& word);
std::string shell_line(const std::vector<std::string>& words);

/// To standard error, as it is and as far as that can be written.
void to_stderr(const std::string& text);

/// The one line about a failure: "kvreplay: DUMP: expected .., found ..", with its end of line.
std::string complaint(std::string_view program, std::string_view line);

/// To standard output, line by line as displayable() has it, but whole.
void say_text(std::string_view text);
template <class... Arguments>
void say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  say_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// To be called first. Where a standard stream is closed, a file opened later would take its place, and our
/// lines. What is written to such a stream fails, as before.
void keep_standard_streams();

}  // namespace kvreplay
