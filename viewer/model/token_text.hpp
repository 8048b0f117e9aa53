#pragma once

#include "data/dump.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

/// A token as it is shown in one line: control characters and line breaks as visible signs, spaces at its
/// ends kept visible, cut to `most` characters of UTF-8 with an ellipsis; "" where the dump has no text.
std::string token_text(const std::optional<TokenLabels>& labels, Index position, std::size_t most);

}  // namespace kvreplay::viewer
