#include "viewer/model/token_text.hpp"

#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

std::size_t characters(const std::string& utf8) {
  std::size_t count = 0;
  for (const char c : utf8) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80 ? 1 : 0;
  return count;
}

/// By another's judgement: nlohmann's writer rejects what is no UTF-8.
bool is_utf8(const std::string& text) {
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

TEST_CASE("what is invisible in a token gets a sign", "[viewer][token_text]") {
  CHECK(visible_text("the", 20) == "the");
  CHECK(visible_text(" the", 20) == "·the");
  CHECK(visible_text("a b ", 20) == "a b·");
  CHECK(visible_text("   ", 20) == "···");
  CHECK(visible_text("\n", 20) == "↵");
  CHECK(visible_text(" \n\n", 20) == "·↵↵");
  CHECK(visible_text("\tx\t", 20) == "→x→");
  CHECK(visible_text("\r\n", 20) == "\\r↵");
  CHECK(visible_text(std::string("a\0b", 3), 20) == "a\\x00b");
  CHECK(visible_text("\x1B[0m\x7F", 20) == "\\x1B[0m\\x7F");
  CHECK(visible_text("e\u200Bf\u202E", 20) == "e\\u200Bf\\u202E");
  CHECK(visible_text("\u00A0x", 20) == "·x");
  CHECK(visible_text("größe 日本 😀", 20) == "größe 日本 😀");
  CHECK(visible_text("", 20).empty());
}

TEST_CASE("bytes that are no UTF-8 are shown as bytes", "[viewer][token_text]") {
  CHECK(visible_text("\xE6\x97", 20) == "\\xE6\\x97");  // the first two of three
  CHECK(visible_text("\xA5z", 20) == "\\xA5z");         // the last alone
  CHECK(visible_text("\xC0\xAF", 20) == "\\xC0\\xAF");  // overlong
  CHECK(visible_text("\xE0\x80\xAF", 20) == "\\xE0\\x80\\xAF");
  CHECK(visible_text("\xED\xA0\x80", 20) == "\\xED\\xA0\\x80");  // a surrogate
  CHECK(visible_text("\xF4\x90\x80\x80", 40) == "\\xF4\\x90\\x80\\x80");
  CHECK(visible_text("\xF8\xFF", 20) == "\\xF8\\xFF");
}

TEST_CASE("tokens are cut between characters", "[viewer][token_text]") {
  CHECK(visible_text("attention", 9) == "attention");
  CHECK(visible_text("attention", 8) == "attenti…");
  CHECK(visible_text("größe", 4) == "grö…");
  CHECK(visible_text("日本語", 2) == "日…");
  CHECK(visible_text("x", 1) == "x");
  CHECK(visible_text("xy", 1) == "…");
  CHECK(visible_text("xy", 0).empty());
  CHECK(visible_text("ab\x1B", 5) == "ab…");  // a sign of several characters is not cut
  CHECK(visible_text("ab\x1B", 6) == "ab\\x1B");
  std::mt19937 random(12);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text;
    for (unsigned i = 0; i < random() % 24; ++i)
      text += static_cast<char>(random() % 3 == 0 ? 0x80 + random() % 128 : random() % 128);
    const std::size_t most = random() % 30;
    const std::string shown = visible_text(text, most);
    CHECK(is_utf8(shown));
    CHECK(characters(shown) <= most);
    bool printable = true;
    for (const char c : shown) printable = printable && (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
    CHECK(printable);
  }
}

TEST_CASE("tokens without text are empty", "[viewer][token_text]") {
  TokenLabels labels;
  CHECK(token_text(std::nullopt, 0, 10).empty());
  CHECK(token_text(labels, 0, 10).empty());
  labels.text = {"a", " b"};
  CHECK(token_text(labels, 1, 10) == "·b");
  CHECK(token_text(labels, 2, 10).empty());
  CHECK(token_text(labels, -1, 10).empty());
}
