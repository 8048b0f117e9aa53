#pragma once

#include "data/dump.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// The texts of T tokens in labels, or their position numbers where there are none.
std::vector<std::string> reading_texts(const std::optional<TokenLabels>& labels, Index T);

/// What stands of one token on one line: spaces, or other characters, or the sign of a line break.
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
  /// Where a token is read: its first piece with more than spaces and line breaks, else its first one.
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

}  // namespace kvreplay::viewer
