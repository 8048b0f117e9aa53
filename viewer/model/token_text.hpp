#pragma once

#include "data/dump.hpp"
#include "data/utf8.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace kvreplay::viewer {

bool is_space(char32_t code);

/// How a character is shown within a token; all signs are in Inter and in DejaVu Sans Mono.
std::string sign_of(const Character& character);
inline constexpr std::string_view kLineBreakSign = "↵";  ///< of characters that break a line

/// Text as it is shown in one line: line breaks as "↵", tabs as "→", spaces at its ends as "·", other control
/// characters and bytes that are no UTF-8 as "\x1B" or "\u200B"; cut to `most` characters, the last of them
/// an ellipsis then. Valid UTF-8, whatever it is made of.
std::string visible_text(std::string_view text, std::size_t most);

/// A token's visible_text(); "" where the dump has no text, or not of this position.
std::string token_text(const std::optional<TokenLabels>& labels, Index position, std::size_t most);

}  // namespace kvreplay::viewer
