#include "viewer/work/find.hpp"

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
  return find_answer(typed, sample()->shape(), metrics_of(*sample()->dump()));
}

std::vector<std::string> titles(std::string_view typed) {
  std::vector<std::string> all;
  for (const FindEntry& entry : found(typed).entries) all.push_back(entry.title);
  return all;
}

TEST_CASE("places, metrics and policies are found by what is typed", "[find]") {
  AppState state;
  state.runs = {sample()};
  const auto go = [&](const char* typed) {
    INFO(typed);
    const FindAnswer answer = found(typed);
    REQUIRE_FALSE(answer.entries.empty());
    CHECK(follow(answer.entries.front(), state));
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

TEST_CASE("what the run does not have is said in one line", "[find]") {
  const auto error = [](std::string_view typed) {
    const FindAnswer answer = found(typed);
    INFO(typed);
    CHECK(std::none_of(answer.entries.begin(), answer.entries.end(), [](const FindEntry& entry) {
      return std::holds_alternative<HeadCondition>(entry.what) ||
             std::holds_alternative<TokenCondition>(entry.what) ||
             std::holds_alternative<PlaceQuery>(entry.what);
    }));
    CHECK(answer.error.find('\n') == std::string::npos);
    return answer.error;
  };
  CHECK(error("L9 H1") == "layer 9: there are 6 layers");
  CHECK(error("h7") == "KV head 7: there are 2 KV heads");
  CHECK(error("1024") == "token 1024: there are 1024 tokens");
  CHECK(error("heads where rho < 1") == "expected rho(SCORE) or rho(SCORE, REFERENCE)");
  CHECK(error("heads where rho(attn, key, value) < 1") == "expected rho(SCORE) or rho(SCORE, REFERENCE)");
  CHECK(error("heads where rho(atn) < 1") == "expected a metric, found \"atn\": attn");
  CHECK(error("heads where recal@10%(attn) < 1") ==
        "expected a figure, found \"recal@10%\": recall@10% or recall@1% or recall@20%");
  CHECK(error("heads where rho(attn, nothing_like_it) < 1")
            .starts_with("expected a metric, found \"nothing_like_it\": one of attn, "));
  CHECK(error("heads where kvzip < 1") == "kvzip: this run does not have it");
  CHECK(error("heads where rho(exact_remove) < 1") ==
        "rho of exact_remove against exact_remove is no figure here");
  CHECK(error("heads where rel_l1(attn) < 1") == "rel_l1 of attn against exact_remove is no figure here");
  CHECK(error("tokens where rho(attn) < 1").starts_with("expected a metric without brackets"));
  CHECK(error("tokens where spearman < 1").starts_with("expected a metric, found \"spearman\""));
  CHECK(error("heads where").starts_with("expected a figure"));
}

TEST_CASE("heads that meet a condition, the furthest from its bound first", "[find]") {
  const auto condition = [](std::string_view typed) {
    const FindAnswer answer = found(typed);
    INFO(typed << ": " << answer.error);
    REQUIRE(answer.entries.size() == 1);
    return std::get<HeadCondition>(answer.entries.front().what);
  };
  // By brute force, over figures that were made up.
  std::vector<std::shared_ptr<const HeadSummary>> heads;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double sum : {0.5, 0.9, nan, 0.1, 0.5, -1.0}) {
    auto head = std::make_shared<HeadSummary>();
    head->layer = std::ssize(heads) / 2;
    head->kv_head = std::ssize(heads) % 2;
    head->sums.fill(nan);
    head->sums[static_cast<std::size_t>(TokenMetric::attn)] = sum;
    heads.push_back(head);
  }
  using Places = std::vector<std::pair<Index, Index>>;
  CHECK(heads_where(condition("heads where attn < 0.6"), heads) == Places{{2, 1}, {1, 1}, {0, 0}, {2, 0}});
  CHECK(heads_where(condition("heads where sum(attn) >= 0.5"), heads) == Places{{0, 1}, {0, 0}, {2, 0}});
  CHECK(heads_where(condition("heads where attn > 1"), heads).empty());
  CHECK(heads_where(condition("heads where key < 1"), heads).empty());  // none has it
  CHECK(heads_where(condition("heads where attn < 1"), {}).empty());

  CHECK(condition("heads where rho(caote) < 0.8").figure ==
        HeadFigure{TokenMetric::caote, TokenMetric::exact_remove, AgreementFigure::spearman});
  CHECK(condition("heads where recall@10%(attn, oracle_future) < 50%").figure ==
        HeadFigure{TokenMetric::attn, TokenMetric::oracle_future, AgreementFigure::recall_10pc});
}

TEST_CASE("tokens that meet a condition", "[find]") {
  TokenMetrics metrics;
  metrics[TokenMetric::exact_remove] = Matrix<double>(1, 4);
  metrics[TokenMetric::exact_remove] << 0.2, 0.1, std::nan(""), 0.3;
  const auto where = [&](std::string_view typed) {
    return tokens_where(std::get<TokenCondition>(found(typed).entries.at(0).what), metrics);
  };
  CHECK(where("tokens where exact_remove > 0.1") == std::vector<Index>{0, 3});
  CHECK(where("tokens where exact_remove <= 0.1") == std::vector<Index>{1});
  CHECK(where("tokens where attn > 0").empty());  // not there
}

}  // namespace
}  // namespace kvreplay::viewer
