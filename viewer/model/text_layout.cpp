#include "viewer/model/text_layout.hpp"

#include "data/utf8.hpp"
#include "viewer/model/token_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

constexpr std::string_view kTab = "    ";
/// Of a token without text.
constexpr std::string_view kNothing = "·";

}  // namespace

std::vector<std::string> reading_texts(const std::optional<TokenLabels>& labels, Index T) {
  if (labels && std::ssize(labels->text) == T) return labels->text;
  std::vector<std::string> numbers;
  numbers.reserve(T);
  for (Index p = 0; p < T; ++p) numbers.push_back(fmt::format("{}{}", p > 0 ? " " : "", p));
  return numbers;
}

class TextLayout::Builder {
 public:
  Builder(TextLayout& layout, const WidthOf& width_of)
      : layout_(layout),
        width_of_(width_of),
        // So that what ends a line, one space or the sign of its break, has a place behind the last word.
        limit_(layout.width_ - std::max(width_of(" "), width_of(kLineBreakSign))) {}

  void add(Index token, std::string_view text) {
    layout_.home_.push_back(kNone);
    if (text.empty()) run(token, Kind::word, kNothing);
    while (!text.empty()) {
      // What follows each other and is of one kind.
      const Kind kind = kind_of(first_character(text));
      std::string shown;
      do {
        const Character next = first_character(text);
        if (kind_of(next) != kind) break;
        shown += next.code == '\t' ? std::string(kTab) : sign_of(next);
        text.remove_prefix(next.bytes.size());
      } while (!text.empty() && kind != Kind::line_break);
      run(token, kind, shown);
    }
  }

  void finish() {
    end_word();
    if (layout_.first_.back() < layout_.pieces_.size()) end_line();
  }

 private:
  enum class Kind { word, space, line_break };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  static Kind kind_of(const Character& character) {
    if (!character.valid) return Kind::word;
    if (character.code == '\t' || is_space(character.code)) return Kind::space;
    return sign_of(character) == kLineBreakSign ? Kind::line_break : Kind::word;
  }

  void run(Index token, Kind kind, std::string_view shown) {
    TextPiece piece;
    piece.token = token;
    piece.width = width_of_(shown);
    piece.begin = static_cast<std::uint32_t>(layout_.text_.size());
    layout_.text_ += shown;
    piece.end = static_cast<std::uint32_t>(layout_.text_.size());
    piece.blank = kind != Kind::word;
    if (kind == Kind::word) {
      word_.push_back(piece);
      return;
    }
    end_word();
    // The room that words leave is for these.
    if (x_ > 0 && x_ + piece.width > layout_.width_) end_line();
    place(piece);
    if (kind == Kind::line_break) end_line();
  }

  void end_word() {
    float width = 0;
    for (const TextPiece& piece : word_) width += piece.width;
    if (x_ > 0 && x_ + width > limit_ && width <= limit_) end_line();
    for (const TextPiece& piece : word_) {
      if (x_ > 0 && x_ + piece.width > limit_) end_line();
      place(piece);
    }
    word_.clear();
  }

  void place(const TextPiece& piece) {
    if (x_ + piece.width <= layout_.width_) return put(piece);
    // Too long for any line: character by character.
    const std::uint32_t end = piece.end;
    TextPiece part = piece;
    part.end = part.begin;
    part.width = 0;
    while (part.end < end) {
      const std::string_view next =
          first_character(std::string_view(layout_.text_).substr(part.end, end - part.end)).bytes;
      const float width = width_of_(next);
      if (part.end > part.begin && x_ + part.width + width > limit_) {
        put(part);
        end_line();
        part.begin = part.end;
        part.width = 0;
      }
      part.end += static_cast<std::uint32_t>(next.size());
      part.width += width;
    }
    put(part);
  }

  void put(TextPiece piece) {
    piece.x = x_;
    x_ += piece.width;
    std::uint32_t& home = layout_.home_[piece.token];
    if (home == kNone || (layout_.pieces_[home].blank && !piece.blank))
      home = static_cast<std::uint32_t>(layout_.pieces_.size());
    layout_.pieces_.push_back(piece);
  }

  void end_line() {
    layout_.first_.push_back(static_cast<std::uint32_t>(layout_.pieces_.size()));
    x_ = 0;
  }

  TextLayout& layout_;
  const WidthOf& width_of_;
  float limit_;
  float x_ = 0;
  std::vector<TextPiece> word_;  // not placed yet
};

TextLayout::TextLayout(std::span<const std::string> tokens, float width, const WidthOf& width_of)
    : width_(width) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  text_.reserve(bytes + bytes / 8);
  pieces_.reserve(2 * tokens.size());
  home_.reserve(tokens.size());
  Builder builder(*this, width_of);
  for (const std::string& token : tokens) builder.add(std::ssize(home_), token);
  builder.finish();
}

std::span<const TextPiece> TextLayout::line(Index number) const {
  return std::span(pieces_).subspan(first_[number], first_[number + 1] - first_[number]);
}

Index TextLayout::line_of(Index token) const {
  return std::upper_bound(first_.begin(), first_.end(), home_[token]) - first_.begin() - 1;
}

std::optional<Index> TextLayout::token_at(Index number, float x) const {
  if (number < 0 || number >= lines() || x < 0) return std::nullopt;
  for (const TextPiece& piece : line(number))
    if (x < piece.x + piece.width) return piece.token;
  return std::nullopt;
}

std::size_t TextLayout::bytes() const {
  return text_.capacity() + pieces_.capacity() * sizeof(TextPiece) +
         (first_.capacity() + home_.capacity()) * sizeof(std::uint32_t);
}
std::size_t bytes_of(const TextLayout& layout) { return sizeof(layout) + layout.bytes(); }

}  // namespace kvreplay::viewer
