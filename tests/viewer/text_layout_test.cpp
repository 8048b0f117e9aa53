#include "data/utf8.hpp"
#include "tests/support/catch.hpp"
#include "viewer/model/token_text.hpp"

#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

/// A character is one pixel wide.
float characters(std::string_view text) { return static_cast<float>(characters_in(text)); }

std::vector<std::string> lines_of(const TextLayout& layout) {
  std::vector<std::string> lines;
  for (Index n = 0; n < layout.lines(); ++n) {
    std::string& line = lines.emplace_back();
    for (const TextPiece& piece : layout.line(n)) line += layout.text(piece);
  }
  return lines;
}

using Texts = std::vector<std::string>;

Texts wrapped(const Texts& tokens, float width) { return lines_of(TextLayout(tokens, width, characters)); }

/// What holds of every layout.
void check_laws(const Texts& tokens, const TextLayout& layout) {
  REQUIRE(layout.tokens() == std::ssize(tokens));
  Index last = 0;
  for (Index n = 0; n < layout.lines(); ++n) {
    float x = 0;
    REQUIRE(!layout.line(n).empty());
    for (const TextPiece& piece : layout.line(n)) {
      CHECK(piece.x == x);
      CHECK(piece.token >= last);
      CHECK(piece.width == characters(layout.text(piece)));
      const bool alone = characters_in(layout.text(piece)) == 1 && layout.line(n).size() == 1;
      CHECK((piece.x + piece.width <= layout.width() || alone));
      CHECK(layout.token_at(n, piece.x + piece.width / 2) == piece.token);
      x += piece.width;
      last = piece.token;
    }
    CHECK_FALSE(layout.token_at(n, x).has_value());
    CHECK_FALSE(layout.token_at(n, -1).has_value());
  }
  for (Index token = 0; token < layout.tokens(); ++token) {
    const TextPiece& home = layout.piece_of(token);
    CHECK(home.token == token);
    CHECK(layout.token_at(layout.line_of(token), home.x + home.width / 2) == token);
  }
}

}  // namespace

TEST_CASE("text wraps at spaces, and words go across tokens", "[viewer][text_layout]") {
  CHECK(wrapped({"The", " quick", " bro", "wn", " fox"}, 10) == Texts{"The quick ", "brown fox"});
  CHECK(wrapped({"The", " quick", " bro", "wn", " fox"}, 100) == Texts{"The quick brown fox"});
  CHECK(wrapped({"a b c"}, 4) == Texts{"a b ", "c"});
  CHECK(wrapped({}, 10).empty());
}

TEST_CASE("real line breaks are kept and have a sign", "[viewer][text_layout]") {
  CHECK(wrapped({"one", "\n", "two", "\n\n", "  three\n"}, 20) == Texts{"one↵", "two↵", "↵", "  three↵"});
  CHECK(wrapped({"\tx"}, 20) == Texts{"    x"});
}

TEST_CASE("words longer than a line break between tokens, then between characters", "[viewer][text_layout]") {
  CHECK(wrapped({"abcd", "efgh", "ij"}, 7) == Texts{"abcd", "efghij"});
  CHECK(wrapped({"abcdefghij"}, 5) == Texts{"abcd", "efgh", "ij"});
  CHECK(wrapped({"größenwahn"}, 6) == Texts{"größe", "nwahn"});
  CHECK(wrapped({"ab"}, 0) == Texts{"a", "b"});
}

TEST_CASE("every token is found again at its position", "[viewer][text_layout]") {
  const Texts parts = {"the",      " and", " ",    "\n",     "\n\n",
                       "        ", "\t",   "",     "\xE6",   "日本",
                       " é\n",     " \n ", "x",    "-",      "supercalifragilistic",
                       "\r\n",     ". ",   "\x1B", "  if (", "){",
                       "\u200B"};
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    Texts tokens;
    for (unsigned i = 0; i < 1 + random() % 300; ++i) tokens.push_back(parts[random() % parts.size()]);
    const auto width = static_cast<float>(random() % 60);
    const TextLayout layout(tokens, width, characters);
    check_laws(tokens, layout);
    // Nothing is lost, whatever the width.
    std::string all, wide;
    for (const std::string& line : lines_of(layout)) all += line;
    for (const std::string& line : wrapped(tokens, 1e6F)) wide += line;
    CHECK(all == wide);
  }
}

TEST_CASE("a token is read where it has letters", "[viewer][text_layout]") {
  const Texts tokens = {"Some", " words", " here"};
  const TextLayout layout(tokens, 7, characters);
  CHECK(lines_of(layout) == Texts{"Some ", "words ", "here"});
  CHECK(layout.line_of(1) == 1);
  CHECK(layout.text(layout.piece_of(1)) == "words");
  CHECK(layout.token_at(0, 4.5F) == 1);  // its space
}

TEST_CASE("a dump without labels shows positions", "[viewer][text_layout]") {
  CHECK(reading_texts(std::nullopt, 3) == Texts{"0", " 1", " 2"});
  TokenLabels labels;
  labels.ids = {5, 6};
  CHECK(reading_texts(labels, 2) == Texts{"0", " 1"});
  labels.text = {"a", "b"};
  CHECK(reading_texts(labels, 2) == labels.text);
}
