#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "tests/sim/page_cases.hpp"
#include "tests/support/catch.hpp"

#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr PageScore kAllPageScores[] = {PageScore::mean, PageScore::max, PageScore::sum};

EvictionRule in_pages(Index page, PageScore by = PageScore::mean, Index sinks = 0, Index recent = 0) {
  EvictionRule rule;
  rule.page = page;
  rule.page_by = by;
  rule.sinks = sinks;
  rule.recent = recent;
  return rule;
}

using Places = std::vector<Index>;

Places kept_of(const EvictionRule& rule, const std::vector<double>& scores, Index budget) {
  return positions(
      keep_by(rule, Eigen::Map<const Vector<double>>(scores.data(), std::ssize(scores)), budget));
}

/// Integers, so that sums are exact in any order; few of them: many ties.
std::vector<double> random_scores(Index n, unsigned seed, int different) {
  std::mt19937 engine(seed);
  std::vector<double> scores;
  for (Index p = 0; p < n; ++p)
    scores.push_back(static_cast<double>(engine() % static_cast<unsigned>(different)) - 2);
  return scores;
}

}  // namespace

TEST_CASE("pages: scores of pages, by hand", "[pages]") {
  const Vector<double> scores = Vector<double>{{4, 8, -1, -3, 5, 2, 7}};
  CHECK(page_scores(scores, 2, PageScore::mean) == Vector<double>{{6, -2, 3.5, 7}});
  CHECK(page_scores(scores, 2, PageScore::max) == Vector<double>{{8, -1, 5, 7}});
  CHECK(page_scores(scores, 2, PageScore::sum) == Vector<double>{{12, -4, 7, 7}});
  CHECK(page_scores(scores, 3, PageScore::sum) == Vector<double>{{11, 4, 7}});
  CHECK(page_scores(scores, 7, PageScore::mean)[0] == 22.0 / 7);
  for (const PageScore by : kAllPageScores) CHECK(page_scores(scores, 1, by) == scores);
  CHECK(page_scores(Vector<double>(0), 4, PageScore::mean).size() == 0);
}

TEST_CASE("pages: what is kept, by hand", "[pages]") {
  // Pages of 2: means 5, 1, 9, 0, and 3 of the last, short one.
  const std::vector<double> scores = {10, 0, 1, 1, 9, 9, 0, 0, 3};
  CHECK(kept_of(in_pages(2), scores, 3) == Places{4, 5, 8});
  CHECK(kept_of(in_pages(2), scores, 4) == Places{4, 5, 8});  // a page more has no room
  CHECK(kept_of(in_pages(2), scores, 5) == Places{0, 1, 4, 5, 8});
  CHECK(kept_of(in_pages(2, PageScore::max), scores, 3) == Places{0, 1, 8});
  CHECK(kept_of(in_pages(2), scores, 1) == Places{8});  // the next token goes there
  CHECK(kept_of(in_pages(2), scores, 2) == Places{8});
  CHECK(kept_of(in_pages(2), scores, 0).empty());
  // One pinned token pins its page: sinks first, then the most recent.
  CHECK(kept_of(in_pages(2, PageScore::mean, 1, 0), scores, 5) == Places{0, 1, 4, 5, 8});
  CHECK(kept_of(in_pages(2, PageScore::mean, 3, 0), scores, 5) == Places{0, 1, 2, 3, 8});
  CHECK(kept_of(in_pages(2, PageScore::mean, 0, 2), scores, 5) == Places{4, 5, 6, 7, 8});
  CHECK(kept_of(in_pages(2, PageScore::mean, 1, 1), scores, 2) == Places{0, 1});
  // What does not fit goes out, and what comes behind it may fit: three pinned pages of 4 of 9 tokens.
  CHECK(kept_of(in_pages(4, PageScore::mean, 0, 6), scores, 4) == Places{8});
  CHECK(kept_of(in_pages(4, PageScore::mean, 0, 6), scores, 5) == Places{4, 5, 6, 7, 8});
  CHECK(kept_of(in_pages(4, PageScore::mean, 1, 6), scores, 5) == Places{0, 1, 2, 3, 8});
  CHECK(kept_of(in_pages(4, PageScore::mean, 1, 6), scores, 4) == Places{0, 1, 2, 3});
  // Equal pages: the one in front.
  CHECK(kept_of(in_pages(3), {1, 2, 3, 3, 2, 1, 2, 2, 2}, 3) == Places{0, 1, 2});
  CHECK(kept_of(in_pages(2), {0, 0, -kEndless, 1, kEndless, 0}, 4) == Places{0, 1, 4, 5});
}

TEST_CASE("pages: scores are pooled before they are cut into pages", "[pages]") {
  EvictionRule rule = in_pages(2);
  rule.pool = {Pooling::Kind::max, 3};
  rule.pool_window = 2;
  // Pooled: 1, 1, 6, 6, 6, 2, then the window's own 0 and 9; pages 1, 6, 4, 4.5.
  const std::vector<double> scores = {1, 0, 0, 6, 0, 2, 0, 9};
  CHECK(kept_of(rule, scores, 2) == Places{2, 3});
  CHECK(kept_of(rule, scores, 4) == Places{2, 3, 6, 7});
  CHECK(kept_of(rule, scores, 6) == Places{2, 3, 4, 5, 6, 7});
}

TEST_CASE("pages: what is pinned, counted", "[pages]") {
  CHECK(pinned_tokens(2, 3, 1, 100) == 5);
  CHECK(pinned_tokens(0, 0, 16, 96) == 0);
  CHECK(pinned_tokens(0, 0, 16, 100) == 4);  // the short last page
  CHECK(pinned_tokens(0, 4, 16, 100) == 4);
  CHECK(pinned_tokens(0, 5, 16, 100) == 20);
  CHECK(pinned_tokens(1, 0, 16, 96) == 16);
  CHECK(pinned_tokens(16, 32, 16, 900) == 16 + 36);
  CHECK(pinned_tokens(60, 60, 64, 100) == 100);  // no token twice
  CHECK(pinned_tokens(3, 0, 100, 7) == 7);
}

TEST_CASE("pages: what whole pages keep of a budget", "[pages]") {
  CHECK(tokens_of_pages(180, 1, 900) == 180);
  CHECK(tokens_of_pages(180, 16, 900) == 180);  // 4 and 11 pages
  CHECK(tokens_of_pages(179, 16, 900) == 164);
  CHECK(tokens_of_pages(180, 64, 900) == 132);
  CHECK(tokens_of_pages(180, 16, 896) == 176);
  CHECK(tokens_of_pages(899, 900, 900) == 0);
  CHECK(tokens_of_pages(900, 900, 900) == 900);
  CHECK(tokens_of_pages(3, 16, 900) == 0);
  CHECK(tokens_of_pages(4, 16, 900) == 4);
  CHECK(tokens_of_pages(0, 16, 896) == 0);
}

TEST_CASE("pages: laws", "[pages]") {
  for (const Index n : {1, 2, 7, 16, 33, 48})
    for (const Index page : {1, 2, 5, 16, 33})
      for (const PageScore by : kAllPageScores)
        for (const auto& [sinks, recent] : {std::pair<Index, Index>{0, 0}, {3, 0}, {0, 6}, {2, 17}, {40, 40}})
          for (const int different : {2, 5, 1000}) {
            const EvictionRule rule = in_pages(page, by, sinks, recent);
            const std::vector<double> scores =
                random_scores(n, static_cast<unsigned>(n * page + sinks + recent), different);
            for (Index budget = 0; budget <= n; ++budget) {
              INFO(n << " tokens, pages of " << page << ", pinned " << sinks << " and " << recent
                     << ", budget " << budget << ", by " << kPageScores[by].name);
              const Places kept = kept_of(rule, scores, budget);
              REQUIRE(kept == pages_kept_naively(scores, rule, budget));
              REQUIRE(std::ssize(kept) <= budget);
              if (budget == n) REQUIRE(std::ssize(kept) == n);
              // As many whatever the scores are, so that all heads of a layer agree.
              REQUIRE(std::ssize(kept_of(rule, random_scores(n, 77, different), budget)) == std::ssize(kept));
              if (page == 1) REQUIRE(std::ssize(kept) == budget);
              const Index whole = tokens_of_pages(budget, page, n);
              REQUIRE(whole <= budget);
              REQUIRE(std::ssize(kept_of(rule, scores, whole)) == whole);  // whatever is pinned
              if (page >= n) REQUIRE((kept.empty() || std::ssize(kept) == n));
              if (pinned_tokens(sinks, recent, page, n) <= budget)
                for (Index p = 0; p < n; ++p)
                  if (p < sinks || p >= n - recent) REQUIRE(std::binary_search(kept.begin(), kept.end(), p));
            }
          }
}

TEST_CASE("pages: own options make the rule, and say where it cannot go", "[pages]") {
  Policy policy;
  policy.base = EvictionBase::snapkv;
  const auto made = [&] { return rule_of(policy, Semantics::paper, {}, 900, 180, false); };
  CHECK(made().page == 1);
  CHECK_FALSE(why_not_in_decoding(made()));
  policy.own.page = 16;
  CHECK(made().page == 16);
  CHECK(made().page_by == PageScore::mean);
  CHECK_FALSE(made().shared_by_layer);
  CHECK(why_not_in_decoding(made()));
  CHECK_FALSE(why_not_in_blocks(made()));
  policy.own.page_by = PageScore::max;
  policy.own.page_heads = PageHeads::head;
  CHECK(made().page_by == PageScore::max);
  CHECK_FALSE(made().shared_by_layer);
  policy.own.page_heads = PageHeads::layer;
  CHECK(made().shared_by_layer);
  CHECK(why_not_in_blocks(made()));
  // A ranking that is the layer's anyway stays so.
  policy.base = EvictionBase::tova;
  policy.own.page_heads = PageHeads::head;
  CHECK(rule_of(policy, Semantics::official, {}, 900, 180, false).shared_by_layer);
}

TEST_CASE("pieces of text: where lines and sentences end", "[pages]") {
  const std::vector<std::string> texts = {"He", " said", ":", " \"", "No",  ".\"", " 3",
                                          ".",  "5",     "!", "\n",  "Yes", "? ",  "x"};
  CHECK(chunk_ends(texts, ChunkBy::line) == Places{11, 14});
  CHECK(chunk_ends(texts, ChunkBy::sentence) == Places{6, 10, 11, 13, 14});
  CHECK(chunk_ends(std::vector<std::string>{"."}, ChunkBy::sentence) == Places{1});
}

TEST_CASE("pieces of text are kept whole by worth, the last as far as it goes", "[pages]") {
  // Means 5, 1, 9, 2.
  const std::vector<double> scores = {5, 5, 1, 9, 9, 9, 0, 4};
  EvictionRule rule = in_pages(1);
  rule.chunk_ends = {2, 3, 6, 8};
  CHECK(kept_of(rule, scores, 3) == Places{3, 4, 5});
  CHECK(kept_of(rule, scores, 4) == Places{0, 3, 4, 5});
  CHECK(kept_of(rule, scores, 6) == Places{0, 1, 3, 4, 5, 6});
  CHECK(kept_of(rule, scores, 0).empty());
  CHECK(kept_of(rule, scores, 8).size() == 8);
  rule.page_by = PageScore::sum;  // 10, 1, 27, 4
  CHECK(kept_of(rule, scores, 7) == Places{0, 1, 3, 4, 5, 6, 7});
  rule.sinks = 1;
  rule.recent = 2;
  CHECK(kept_of(rule, scores, 4) == Places{0, 3, 6, 7});
  CHECK(kept_of(rule, scores, 2) == Places{0, 7});
  // One token each: the policy itself.
  for (const unsigned seed : {1U, 2U}) {
    const std::vector<double> random = random_scores(20, seed, 6);
    EvictionRule single = in_pages(1, PageScore::mean, 2, 3), plain = single;
    for (Index end = 1; end <= 20; ++end) single.chunk_ends.push_back(end);
    for (Index budget = 0; budget <= 20; ++budget)
      CHECK(kept_of(single, random, budget) == kept_of(plain, random, budget));
  }
}
