#pragma once

#include <string>
#include <vector>

namespace kvreplay {

/// Something that a run does not compute, and why, as one clause.
struct LeftOut {
  std::string what, why;
};

/// Names that share a reason on one line: "a, b (why)".
std::vector<std::string> left_out_lines(const std::vector<LeftOut>& left_out);

}  // namespace kvreplay
