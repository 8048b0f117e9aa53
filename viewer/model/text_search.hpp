#pragma once

#include "data/dump.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// Tokens in which a text stands: all from the one with its first byte to the one with its last.
struct TextMatch {
  Index first = 0, last = 0;
  bool operator==(const TextMatch&) const = default;
};

/// Where `typed` stands in the tokens' texts, one after the other without a gap, from the beginning; matches
/// share no byte. Capitals count only where `typed` has some: of the Latin, Greek and Cyrillic letters below
/// U+0450, others are always taken as they are. None for an empty text. O(bytes).
std::vector<TextMatch> find_in_tokens(std::span<const std::string> tokens, std::string_view typed);

/// The match that is reached from a token by a step forward (the first that begins behind it) or back, round
/// the ends; `from` -1 with a step forward is the first. `matches` is not empty.
std::size_t next_match(std::span<const TextMatch> matches, Index from, bool forward);

}  // namespace kvreplay::viewer
