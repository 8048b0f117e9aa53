#pragma once

#include <stdexcept>
#include <string>

namespace kvreplay {

/// Input that cannot be used: which input, what was expected of it and what was found instead.
/// The only exception the libraries throw on purpose; `main` prints it as one line and exits with 2.
class InputError : public std::runtime_error {
 public:
  InputError(const std::string& what_input, const std::string& expected, const std::string& found)
      : std::runtime_error(what_input + ": expected " + expected + ", found " + found) {}

  /// For input whose fault is not a mismatch (an unreadable folder, a full disk).
  explicit InputError(const std::string& line) : std::runtime_error(line) {}
};

}  // namespace kvreplay
