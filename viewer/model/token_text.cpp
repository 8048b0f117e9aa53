#include "viewer/model/token_text.hpp"

#include "data/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::string_view kTab = "    ";
/// Sign of a token without text.
constexpr std::string_view kNothing = "·";

/// The small letter of a capital, which has as many bytes; all others as they are.
char32_t small_of(char32_t code) {
  if (code >= 'A' && code <= 'Z') return code + 32;
  if (code >= 0xC0 && code <= 0xDE && code != 0xD7) return code + 32;
  if (code >= 0x391 && code <= 0x3A9 && code != 0x3A2) return code + 32;
  if (code >= 0x410 && code <= 0x42F) return code + 32;
  if (code >= 0x400 && code <= 0x40F) return code + 80;
  return code;
}

/// In small letters, byte by byte in the place of the original; whether it changed.
bool make_small(std::string& text) {
  bool changed = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = first_character(std::string_view(text).substr(at));
    const std::size_t length = c.bytes.size();
    const char32_t small = c.valid ? small_of(c.code) : c.code;
    if (small != c.code) {
      changed = true;
      if (length == 1) {
        text[at] = static_cast<char>(small);
      } else {
        text[at] = static_cast<char>(0xC0U | small >> 6);
        text[at + 1] = static_cast<char>(0x80U | (small & 0x3FU));
      }
    }
    at += length;
  }
  return changed;
}

}  // namespace

bool is_space(char32_t code) {
  return code == ' ' || code == 0xA0 || (code >= 0x2000 && code <= 0x200A) || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

namespace {

/// Control characters, and those that change the direction or the look of others without one of their own.
bool is_invisible(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

}  // namespace

std::string sign_of(const Character& character) {
  if (!character.valid) return fmt::format("\\x{:02X}", static_cast<unsigned>(character.code));
  if (character.code == '\n' || character.code == 0x2028 || character.code == 0x2029)
    return std::string(kLineBreakSign);
  if (character.code == '\t') return "→";
  if (character.code == '\r') return "\\r";
  const auto code = static_cast<unsigned>(character.code);
  if (is_invisible(character.code))
    return code < 0x100 ? fmt::format("\\x{:02X}", code) : fmt::format("\\u{:04X}", code);
  return std::string(character.bytes);
}

std::string visible_text(std::string_view text, std::size_t most) {
  std::vector<Character> characters;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(characters.back().bytes.size()))
    characters.push_back(first_character(rest));
  const auto blank = [&](std::size_t i) { return characters[i].valid && is_space(characters[i].code); };
  std::size_t first = 0, end = characters.size();
  while (first < end && blank(first)) ++first;
  while (end > first && blank(end - 1)) --end;

  std::string shown, cut;  // `cut` is as much as leaves room for the ellipsis
  std::size_t length = 0;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const std::string sign = i < first || i >= end ? "·" : sign_of(characters[i]);
    length += characters_in(sign);
    if (length > most) return most == 0 ? "" : cut + "…";
    shown += sign;
    if (length < most) cut = shown;
  }
  return shown;
}

std::string token_text(const std::optional<TokenLabels>& labels, Index position, std::size_t most) {
  if (!labels || position < 0 || position >= std::ssize(labels->text)) return "";
  return visible_text(labels->text[position], most);
}

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
      // Piece of consecutive characters of one kind.
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

std::vector<TextMatch> find_in_tokens(std::span<const std::string> tokens, std::string_view typed) {
  std::vector<TextMatch> found;
  if (typed.empty()) return found;
  std::string text;
  std::vector<std::size_t> ends;  // of each token
  ends.reserve(tokens.size());
  for (const std::string& token : tokens) ends.push_back((text += token).size());
  std::string wanted(typed);
  if (!make_small(wanted))
    make_small(text);
  else
    wanted = typed;
  const auto token_of = [&](std::size_t byte) {
    return static_cast<Index>(std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin());
  };
  for (std::size_t at = text.find(wanted); at != std::string::npos;
       at = text.find(wanted, at + wanted.size()))
    found.push_back({token_of(at), token_of(at + wanted.size() - 1)});
  return found;
}

std::size_t next_match(std::span<const TextMatch> matches, Index from, bool forward) {
  const auto begins_before = [](const TextMatch& match, Index token) { return match.first < token; };
  if (forward) {
    const auto next = std::lower_bound(matches.begin(), matches.end(), from + 1, begins_before);
    return next == matches.end() ? 0 : static_cast<std::size_t>(next - matches.begin());
  }
  const auto at = std::lower_bound(matches.begin(), matches.end(), from, begins_before);
  return at == matches.begin() ? matches.size() - 1 : static_cast<std::size_t>(at - matches.begin()) - 1;
}

}  // namespace kvreplay::viewer
