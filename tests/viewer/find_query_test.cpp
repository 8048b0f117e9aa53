#include "viewer/model/find_query.hpp"

#include "tests/support/catch.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

PlaceQuery place(const char* typed) {
  INFO(typed);
  const FindQuery query = find_query(typed);
  CHECK(query.error.empty());
  REQUIRE(std::holds_alternative<PlaceQuery>(query.is));
  return std::get<PlaceQuery>(query.is);
}

WhereQuery where(const std::string& typed) {
  INFO(typed);
  const FindQuery query = find_query(typed);
  INFO(query.error);
  REQUIRE(std::holds_alternative<WhereQuery>(query.is));
  return std::get<WhereQuery>(query.is);
}

std::string error(const std::string& typed) {
  const FindQuery query = find_query(typed);
  CHECK(std::holds_alternative<std::monostate>(query.is));
  return query.error;
}

TEST_CASE("a place is typed in many ways", "[find]") {
  const PlaceQuery head{3, 1, {}};
  for (const char* typed : {"L3 H1", "l3h1", "layer 3 head 1", "Layer 3, KV head 1", "  h1   l3 ",
                            "layer3 head1", "3.1", "L 3 H 1", "layer 3 h1"})
    CHECK(place(typed) == head);
  const PlaceQuery token{{}, {}, 379};
  for (const char* typed : {"379", "token 379", "t379", "#379", "TOKEN 379", " 379 "})
    CHECK(place(typed) == token);
  CHECK(place("layer 12") == PlaceQuery{12, {}, {}});
  CHECK(place("h0") == PlaceQuery{{}, 0, {}});
  CHECK(place("L3 H1 token 5") == PlaceQuery{3, 1, 5});
}

TEST_CASE("what is no place is none, and no error", "[find]") {
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
    const FindQuery query = find_query(typed);
    CHECK(std::holds_alternative<std::monostate>(query.is));
    CHECK(query.error.empty());
  }
}

TEST_CASE("conditions are read whatever their spaces and case", "[find]") {
  const WhereQuery rho{true, "rho", {"caote"}, Compare::less, 0.8};
  for (const char* typed :
       {"heads where rho(caote) < 0.8", "HEADS WHERE Rho( Caote )<.8", "heads  where\trho (caote) < 80%"})
    CHECK(where(typed) == rho);
  CHECK(where("tokens where exact_remove > 0.1") ==
        WhereQuery{false, "exact_remove", {}, Compare::more, 0.1});
  CHECK(where("heads where recall@10%(attn, exact_remove) < 0.5") ==
        WhereQuery{true, "recall@10%", {"attn", "exact_remove"}, Compare::less, 0.5});
  CHECK(where("heads where attn >= -1e-3").compare == Compare::at_least);
  CHECK(where("heads where attn >= -1e-3").bound == -1e-3);
  CHECK(where("heads where attn<=1").compare == Compare::at_most);
  CHECK(where("heads where attn = 1") == where("heads where attn == 1"));
  // What it says is read as the same again.
  for (const char* typed : {"heads where recall@10%(attn,exact_remove)<=0.125", "tokens where attn = 1e-30"})
    CHECK(where(where(typed).text()) == where(typed));
}

TEST_CASE("a bad condition says in one line what was expected", "[find]") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"heads", "expected \"where\", found nothing"},
      {"heads in", "expected \"where\", found \"in\""},
      {"heads where", "expected a figure, found nothing"},
      {"tokens where", "expected a metric, found nothing"},
      {"tokens where (", "expected a metric, found \"(\""},
      {"heads where rho(", "expected a metric, found nothing"},
      {"heads where rho()", "expected a metric, found \")\""},
      {"heads where rho(caote", "expected \",\" or \")\", found nothing"},
      {"heads where rho(caote,) < 1", "expected a metric, found \")\""},
      {"heads where rho(caote) 0.8", "expected <, <=, >, >= or =, found \"0.8\""},
      {"heads where rho(caote) !", "expected <, <=, >, >= or =, found \"!\""},
      {"heads where rho(caote) <", "expected a number, found nothing"},
      {"heads where rho(caote) < <", "expected a number, found \"<\""},
      {"heads where rho(caote) < abc", "expected a number, found \"abc\""},
      {"heads where rho(caote) < nan", "expected a number, found \"nan\""},
      {"heads where rho(caote) < 1e999", "expected a number, found \"1e999\""},
      {"heads where rho(caote) < 0.8 and", "expected no more, found \"and\""},
  };
  for (const auto& [typed, what] : bad) {
    INFO(typed);
    const std::string said = error(typed);
    INFO(said);
    CHECK(said.starts_with(what));
    CHECK(said.find('\n') == std::string::npos);
    // And gives an example that is right.
    const std::size_t example = said.rfind(": ");
    REQUIRE(example != std::string::npos);
    CHECK(std::holds_alternative<WhereQuery>(find_query(said.substr(example + 2)).is));
  }
  CHECK(error("heads where " + std::string(5000, '(')).size() < 200);
  CHECK(error("tokens where a < \x01\n\xFF").find('\n') == std::string::npos);
}

TEST_CASE("comparisons hold for numbers, and never for what is none", "[find]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Compare compare :
       {Compare::less, Compare::at_most, Compare::more, Compare::at_least, Compare::equal}) {
    CHECK_FALSE(holds(compare, nan, 1));
    CHECK_FALSE(symbol_of(compare).empty());
  }
  CHECK(holds(Compare::less, 0.5, 1));
  CHECK_FALSE(holds(Compare::less, 1, 1));
  CHECK(holds(Compare::at_most, 1, 1));
  CHECK(holds(Compare::more, 2, 1));
  CHECK_FALSE(holds(Compare::more, 1, 1));
  CHECK(holds(Compare::at_least, 1, 1));
  CHECK(holds(Compare::equal, 1, 1));
}

}  // namespace
}  // namespace kvreplay::viewer
