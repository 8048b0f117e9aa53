#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The names that a mistyped one may have meant, the nearest first: small edit distance, or one begins with
/// the other. Empty where none comes near.
std::vector<std::string> nearest_names(std::string_view given, const std::vector<std::string>& names);

/// "; did you mean 'a' or 'b'?", or nothing where none comes near.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& names);

}  // namespace kvreplay
