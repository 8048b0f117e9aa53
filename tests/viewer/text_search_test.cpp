#include "tests/support/catch.hpp"
#include "viewer/model/token_text.hpp"

#include <algorithm>
#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

using Texts = std::vector<std::string>;
using Matches = std::vector<TextMatch>;

}  // namespace

TEST_CASE("a text is found across the borders of tokens", "[viewer][text_search]") {
  const Texts tokens = {"The", " GNU", " Gen", "eral", " Public", " Lic", "ense", " gen"};
  CHECK(find_in_tokens(tokens, "general") == Matches{{2, 3}});
  CHECK(find_in_tokens(tokens, "license") == Matches{{5, 6}});
  CHECK(find_in_tokens(tokens, " ") == Matches{{1, 1}, {2, 2}, {4, 4}, {5, 5}, {7, 7}});
  CHECK(find_in_tokens(tokens, "the gnu general public license gen") == Matches{{0, 7}});
  CHECK(find_in_tokens(tokens, "privacy").empty());
  CHECK(find_in_tokens(tokens, "").empty());
  CHECK(find_in_tokens({}, "a").empty());
}

TEST_CASE("capitals count where some are typed", "[viewer][text_search]") {
  const Texts tokens = {"Gen", "gen", "GEN", "É", "é", "Ж", "ж", "×"};
  CHECK(find_in_tokens(tokens, "gen").size() == 3);
  CHECK(find_in_tokens(tokens, "Gen") == Matches{{0, 0}});
  CHECK(find_in_tokens(tokens, "GEN") == Matches{{2, 2}});
  CHECK(find_in_tokens(tokens, "é") == Matches{{3, 3}, {4, 4}});
  CHECK(find_in_tokens(tokens, "Ж") == Matches{{5, 5}});
  CHECK(find_in_tokens(tokens, "ж") == Matches{{5, 5}, {6, 6}});
  CHECK(find_in_tokens(tokens, "×") == Matches{{7, 7}});
}

TEST_CASE("matches share nothing, and tokens without text are passed over", "[viewer][text_search]") {
  CHECK(find_in_tokens(Texts{"aa", "", "aaa"}, "aa") == Matches{{0, 0}, {2, 2}});
  CHECK(find_in_tokens(Texts{"", "a", "", "b", ""}, "ab") == Matches{{1, 3}});
  // A character of several tokens.
  CHECK(find_in_tokens(Texts{"\xE6", "\x97", "\xA5"}, "日") == Matches{{0, 2}});
}

TEST_CASE("every match stands where a search byte by byte finds it", "[viewer][text_search]") {
  std::mt19937 random(8);
  for (int trial = 0; trial < 200; ++trial) {
    Texts tokens;
    std::string text;
    std::vector<Index> token_of;  // of every byte
    for (unsigned t = 0; t < random() % 40; ++t) {
      std::string& token = tokens.emplace_back();
      for (unsigned i = 0; i < random() % 4; ++i) token += static_cast<char>('a' + random() % 2);
      token_of.resize(token_of.size() + token.size(), static_cast<Index>(t));
      text += token;
    }
    const std::string typed = trial % 2 == 0 ? "ab" : "aa";
    Matches expected;
    for (std::size_t at = 0; at + 2 <= text.size();) {
      if (text.substr(at, 2) != typed) {
        ++at;
        continue;
      }
      expected.push_back({token_of[at], token_of[at + 1]});
      at += 2;
    }
    CHECK(find_in_tokens(tokens, typed) == expected);
  }
}

TEST_CASE("steps go from match to match and round the ends", "[viewer][text_search]") {
  const Matches matches = {{2, 3}, {5, 5}, {9, 9}};
  CHECK(next_match(matches, -1, true) == 0);
  CHECK(next_match(matches, 2, true) == 1);
  CHECK(next_match(matches, 4, true) == 1);
  CHECK(next_match(matches, 9, true) == 0);
  CHECK(next_match(matches, 9, false) == 1);
  CHECK(next_match(matches, 4, false) == 0);
  CHECK(next_match(matches, 2, false) == 2);
}
