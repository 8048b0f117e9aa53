#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Terminal output of programs. Names come from files and folders of any origin: no name can steer the
// terminal, split a line or make it endless.

namespace kvreplay {

/// Makes a text safe to show: control characters, and characters that reverse text, are written as "\n",
/// "\x1b" or "\u202e". Bytes that are no UTF-8 become U+FFFD. A text of more than `most` bytes loses its
/// middle.
std::string displayable(std::string_view text, std::size_t most = std::string_view::npos);

/// Names near a mistyped one, the nearest first: small edit distance, or one begins with the other. Empty if
/// none is near.
std::vector<std::string> nearest_names(std::string_view given, const std::vector<std::string>& names);
/// "; did you mean 'a' or 'b'?", or empty if no name is near.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& names);

/// "a, b and 3 more": the first `most` names, then the number of the others.
std::string first_names(std::span<const std::string> names, std::size_t most);

/// Quotes a word for a POSIX shell if necessary. Below: joins the words of a command into one line.
std::string shell_word(const std::string& word);
std::string shell_line(const std::vector<std::string>& words);

/// Writes to standard error, unchanged; a failure to write is ignored.
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
