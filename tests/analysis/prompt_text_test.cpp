#include "analysis/report/prompt_text.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

// A report's text of the prompt: its cuts, tints and names.

using namespace kvreplay;
using namespace kvreplay::report;

TEST_CASE("tints fall evenly with the logarithm of the rank", "[report_prompt]") {
  for (const Index l : {1, 2, 7, 61, 2059, 131072}) {
    INFO(l);
    CHECK(level_of_rank(1, l) == 63);
    if (l > 1) CHECK(level_of_rank(l, l) == 1);
    const auto ranks = ranks_of_levels(l);
    CHECK(ranks[0] == std::pair<Index, Index>(0, 0));
    Index next = 1;
    for (std::size_t level = 64; level-- > 1;) {
      if (ranks[level].first == 0) continue;
      REQUIRE(ranks[level].first == next);
      next = ranks[level].second + 1;
    }
    CHECK(next == l + 1);
  }
  CHECK(tint_of_level(0) == 0);
  CHECK(tint_of_level(1) == 0);
  CHECK(tint_of_level(9) == 1);
  CHECK(tint_of_level(63) == 7);
  CHECK(tint_of_level(level_of_rank(2, 2059)) == 7);
  CHECK(tint_of_level(level_of_rank(1030, 2059)) == 0);  // half of the tokens have none
}

TEST_CASE("of a long prompt the passages of the costliest tokens are shown, whole", "[report_prompt]") {
  std::mt19937 bits(3);
  for (const Index l : {1000, 1024, 1030}) {
    std::vector<Index> ranks(l);
    std::iota(ranks.begin(), ranks.end(), Index{0});
    std::shuffle(ranks.begin(), ranks.end(), bits);
    CHECK(std::ssize(shown_tokens(ranks, l)) == l);
    const Index most = 5 * kPassage + 3;
    const std::vector<Index> shown = shown_tokens(ranks, most);
    CHECK(std::is_sorted(shown.begin(), shown.end()));
    CHECK(std::ssize(shown) <= most);
    std::set<Index> passages;
    for (const Index token : shown) passages.insert(token / kPassage);
    CHECK(passages.size() == 5);
    CHECK(passages.contains(0));
    CHECK(passages.contains((l - 1) / kPassage));
    for (const Index passage : passages)
      for (Index token = passage * kPassage; token < std::min((passage + 1) * kPassage, l); ++token)
        REQUIRE(std::binary_search(shown.begin(), shown.end(), token));
    // From rank 0 on, their passages are taken until there are five.
    std::set<Index> expected{0, (l - 1) / kPassage};
    for (Index rank = 0; expected.size() < 5; ++rank)
      expected.insert((std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()) / kPassage);
    CHECK(passages == expected);
  }
}

TEST_CASE("metrics and policies are called by their plain names first", "[report_prompt]") {
  CHECK(named_metric("exact_remove") == "exact error when it is removed alone (exact_remove)");
  CHECK(named_metric("mine") == "mine");
  CHECK(named_policy("knorm") == "keys of small norm (knorm)");
  CHECK(named_policy("snapkv[window=64,pool=7]") ==
        "attention of the window, pooled (snapkv[window=64,pool=7])");
  CHECK(named_policy("h2o+knorm") ==
        "attention of all rows, the recent half pinned, by how small its key is (h2o+knorm)");
  CHECK(named_policy("score:mine") == "a score alone, by mine (score:mine)");
  CHECK(named_policy("exchange+knorm") ==
        "swaps while the exact error falls, from keys of small norm (exchange+knorm)");
  CHECK(named_policy("mine") == "mine");
}
