#include "viewer/questions/find.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

namespace kvreplay::viewer {
namespace {

const std::shared_ptr<const Run>& sample() {
  static const std::shared_ptr<const Run> run = Run::open(test::sample_dump(), 1);
  return run;
}

FindAnswer found(std::string_view typed) {
  return find_answer(typed, sample()->shape(), sample()->layers(), metrics_of(*sample()->dump()));
}

std::vector<std::string> titles(std::string_view typed) {
  std::vector<std::string> all;
  for (const FindEntry& entry : found(typed).entries) all.push_back(entry.title);
  return all;
}

TEST_CASE("a place is typed in many ways", "[find]") {
  const PlaceQuery head{3, 1, {}};
  for (const char* typed : {"L3 H1", "l3h1", "layer 3 head 1", "Layer 3, KV head 1", "  h1   l3 ",
                            "layer3 head1", "3.1", "L 3 H 1", "layer 3 h1"})
    CHECK(place_query(typed) == head);
  const PlaceQuery token{{}, {}, 379};
  for (const char* typed : {"379", "token 379", "t379", "#379", "TOKEN 379", " 379 "})
    CHECK(place_query(typed) == token);
  CHECK(place_query("layer 12") == PlaceQuery{12, {}, {}});
  CHECK(place_query("h0") == PlaceQuery{{}, 0, {}});
  CHECK(place_query("L3 H1 token 5") == PlaceQuery{3, 1, 5});
  for (const char* typed : {"",
                            " ",
                            "layer",
                            "layer x",
                            "l",
                            "l3 l4",
                            "L-1",
                            "-5",
                            "3.1.2",
                            "3.",
                            ".1",
                            "head 1 of 2",
                            "light",
                            "token",
                            "l3h",
                            "lh1",
                            "99999999999999999999",
                            "h1 h1",
                            "attn",
                            "((",
                            "#",
                            "find 3",
                            "\xFF\xFE",
                            "1e3"}) {
    INFO(typed);
    CHECK_FALSE(place_query(typed).has_value());
  }
}

TEST_CASE("places, metrics and policies are found by what is typed", "[find]") {
  AppState state;
  state.runs = {sample()};
  const auto go = [&](const char* typed) {
    INFO(typed);
    const FindAnswer answer = found(typed);
    REQUIRE_FALSE(answer.entries.empty());
    follow(answer.entries.front(), state);
  };
  go("L3 H1");
  CHECK(state.selection().layer == 3);
  CHECK(state.selection().kv_head == 1);
  go("token 379");
  CHECK(state.selection().layer == 3);
  CHECK(state.selection().token == 379);
  go("12");
  CHECK(state.selection().token == 12);
  go("caote");
  CHECK(state.comparison.score == TokenMetric::caote);
  CHECK(state.comparison.reference == TokenMetric::exact_remove);
  go("removed alone");  // in plain words
  CHECK(state.comparison.reference == TokenMetric::exact_remove);
  go("oracle_next");
  CHECK(state.comparison.reference == TokenMetric::oracle_next);
  CHECK(state.comparison.score == TokenMetric::caote);
  state.show_b = true;
  go("tova");
  CHECK(state.setting_a.policy() == "tova");
  CHECK_FALSE(state.show_b);
  CHECK(titles("a").empty());  // too little to tell
  CHECK(titles("").empty());
  CHECK(titles("no such thing").empty());
}

TEST_CASE("a name that is typed whole stands first, then those that begin so", "[find]") {
  const FindAnswer answer = found("attn");
  REQUIRE(answer.entries.size() > 1);
  CHECK(answer.entries[0].title == "Compare by attn");
  CHECK(answer.entries[0].whole);
  for (std::size_t i = 1; i < answer.entries.size(); ++i) CHECK_FALSE(answer.entries[i].whole);
  const std::vector<std::string> oracles = titles("oracle");
  REQUIRE(oracles.size() > 2);
  CHECK(oracles[0] == "Setting A: oracle");
  CHECK(oracles[1].starts_with("Compare with oracle_"));
}

TEST_CASE("what the run does not have is said in one line", "[find]") {
  const auto error = [](std::string_view typed) {
    const FindAnswer answer = found(typed);
    INFO(typed);
    CHECK(std::none_of(answer.entries.begin(), answer.entries.end(), [](const FindEntry& entry) {
      return std::holds_alternative<PlaceQuery>(entry.what);
    }));
    CHECK(answer.error.find('\n') == std::string::npos);
    return answer.error;
  };
  CHECK(error("L9 H1") == "layer 9: there are 6 layers");
  CHECK(error("h7") == "KV head 7: there are 2 KV heads");
  CHECK(error("1024") == "token 1024: there are 1024 tokens");
}

}  // namespace
}  // namespace kvreplay::viewer
