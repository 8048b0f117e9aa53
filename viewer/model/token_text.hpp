#pragma once

#include "data/dump.hpp"
#include "data/utf8.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

bool is_space(char32_t code);

/// Sign with which a character is shown within a token; Inter and DejaVu Sans Mono contain all of these
/// signs.
std::string sign_of(const Character& character);
inline constexpr std::string_view kLineBreakSign = "↵";  ///< of characters that break a line

/// Text as it is shown in one line: line breaks as "↵", tabs as "→", spaces at its ends as "·", other control
/// characters and bytes that are no UTF-8 as "\x1B" or "\u200B"; cut to `most` characters, the last of them
/// an ellipsis then. Valid UTF-8, whatever it is made of.
std::string visible_text(std::string_view text, std::size_t most);

/// A token's visible_text(); "" where the dump has no text, or not of this position.
std::string token_text(const std::optional<TokenLabels>& labels, Index position, std::size_t most);

/// The texts of T tokens in labels, or their position numbers where there are none.
std::vector<std::string> reading_texts(const std::optional<TokenLabels>& labels, Index T);

/// Part of one token on one line: spaces, other characters, or the sign of a line break.
struct TextPiece {
  Index token = 0;
  float x = 0, width = 0;            ///< pixels from the line's beginning
  std::uint32_t begin = 0, end = 0;  ///< bytes of TextLayout::text()
  bool blank = false;                ///< spaces or a line break
};

/// Tokens as flowing text: real line breaks are kept, lines wrap at spaces and, where a word is longer than a
/// line, between its tokens and at last between characters. Words go across tokens. What cannot be seen has a
/// sign (sign_of), also a token without text. Immutable.
class TextLayout {
 public:
  /// Pixels that a text takes; that of two texts in a row is the sum of theirs.
  using WidthOf = std::function<float(std::string_view)>;

  TextLayout() = default;
  /// `width`: pixels of a line; no piece goes beyond it, unless one character alone is wider. O(bytes).
  TextLayout(std::span<const std::string> tokens, float width, const WidthOf& width_of);

  Index tokens() const { return std::ssize(home_); }
  Index lines() const { return std::ssize(first_) - 1; }
  float width() const { return width_; }
  /// From left to right.
  std::span<const TextPiece> line(Index number) const;
  std::string_view text(const TextPiece& piece) const {
    return std::string_view(text_).substr(piece.begin, piece.end - piece.begin);
  }
  /// Line on which a token is read: that of its first piece with more than spaces and line breaks, else of
  /// its first piece.
  Index line_of(Index token) const;
  const TextPiece& piece_of(Index token) const { return pieces_[home_[token]]; }
  /// The token at a place; nothing beyond a line's ends.
  std::optional<Index> token_at(Index line, float x) const;
  std::size_t bytes() const;

 private:
  class Builder;
  float width_ = 0;
  std::string text_;
  std::vector<TextPiece> pieces_;
  std::vector<std::uint32_t> first_ = {0};  // [lines + 1]: of each line, among pieces_
  std::vector<std::uint32_t> home_;         // [tokens]: piece_of()
};
std::size_t bytes_of(const TextLayout& layout);

/// Tokens in which a text stands: all from the one with its first byte to the one with its last.
struct TextMatch {
  Index first = 0, last = 0;
  bool operator==(const TextMatch&) const = default;
};

/// Matches of `typed` in the tokens' texts, joined without a gap, from the beginning; matches share no byte.
/// Case matters only if `typed` has capitals; case is ignored for the Latin, Greek and Cyrillic letters below
/// U+0450 only. None for an empty text. O(bytes).
std::vector<TextMatch> find_in_tokens(std::span<const std::string> tokens, std::string_view typed);

/// The match that is reached from a token by a step forward (the first that begins behind it) or back, round
/// the ends; `from` -1 with a step forward is the first. `matches` is not empty.
std::size_t next_match(std::span<const TextMatch> matches, Index from, bool forward);

}  // namespace kvreplay::viewer
