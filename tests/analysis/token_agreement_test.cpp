#include "analysis/tokens/token_agreement.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>

using namespace kvreplay;

TEST_CASE("every score and error meets every error and oracle but itself", "[agreement]") {
  const auto pairs = token_pairs(MetricSet::standard());
  CHECK(pairs.size() == 16 * 9 - 5);
  CHECK(pairs.front().score == TokenMetric::attn);
  CHECK(pairs.front().reference == TokenMetric::exact_value);
  CHECK(pairs.back().score == TokenMetric::exact_loss);
  CHECK(pairs.back().reference == TokenMetric::oracle_loss);
  CHECK(std::none_of(pairs.begin(), pairs.end(), [](const TokenPair& p) { return p.score == p.reference; }));
  CHECK(token_pairs({TokenMetric::attn, TokenMetric::key}).empty());
  const auto two = token_pairs({TokenMetric::oracle_next, TokenMetric::exact_key, TokenMetric::key});
  REQUIRE(two.size() == 3);
  CHECK(two[0].rows() == "window");
  CHECK(two[1].rows() == "future");
}

TEST_CASE("a score of the user's meets every error and oracle, and has no unit", "[agreement]") {
  const MetricSet metrics = {TokenMetric::oracle_next, TokenMetric::exact_key, TokenMetric::key};
  const auto pairs = token_pairs(metrics, {"mine", "other"});
  REQUIRE(pairs.size() == 3 + 4);
  CHECK(pairs[3].score == TokenScore("mine", 0));
  CHECK(pairs[3].reference == TokenMetric::exact_key);
  CHECK(pairs[6].score == TokenScore("other", 1));
  CHECK(pairs[6].rows() == "future");
  CHECK_FALSE(pairs[3].same_unit());

  Workers workers(2);
  TokenMetrics values;
  Matrix<double> s(1, 4), e(1, 4);
  s << 1, 2, 3, 4;
  e << 1, 2, 3, 5;
  values[TokenMetric::key] = s;
  values[TokenMetric::exact_key] = values[TokenMetric::oracle_next] = e;
  const Vector<double> falling = Vector<double>::LinSpaced(4, 1, -1);
  const auto found = token_agreements(values, pairs, workers, {s.row(0).transpose(), falling});
  CHECK(found[3][AgreementFigure::spearman] == 1.0);
  CHECK(found[5][AgreementFigure::spearman] == -1.0);
}

TEST_CASE("relative errors are for squared outputs, and for nats", "[agreement]") {
  CHECK(TokenPair{TokenMetric::exact_loss, TokenMetric::oracle_loss}.same_unit());
  CHECK_FALSE(TokenPair{TokenMetric::exact_remove, TokenMetric::exact_loss}.same_unit());
  CHECK(TokenPair{TokenMetric::key, TokenMetric::exact_key}.same_unit());
  CHECK(TokenPair{TokenMetric::exact_joint, TokenMetric::oracle_future}.same_unit());
  CHECK_FALSE(TokenPair{TokenMetric::attn, TokenMetric::exact_key}.same_unit());
  CHECK_FALSE(TokenPair{TokenMetric::caote, TokenMetric::exact_remove}.same_unit());
  CHECK_FALSE(TokenPair{TokenMetric::key, TokenMetric::oracle_importance}.same_unit());
}

TEST_CASE("query heads reduce to their group", "[agreement]") {
  TokenMetrics metrics;
  Matrix<double> values(2, 6);
  values << 9, 9, 9, 9, 1, 2,  //
      7, 7, 7, 7, 3, 6;
  metrics[TokenMetric::exact_key] = values;
  metrics[TokenMetric::knorm] = values;
  metrics[TokenMetric::expected_attention] = values;
  metrics[TokenMetric::kvzip] = values;
  const TokenMetrics group = summed_over_group(metrics);
  CHECK(group[TokenMetric::attn].size() == 0);
  CHECK(group[TokenMetric::exact_key](0, 0) == 16);
  CHECK(group[TokenMetric::exact_key](0, 5) == 8);
  CHECK(group[TokenMetric::knorm](0, 5) == 2);
  CHECK(group[TokenMetric::expected_attention](0, 4) == 2);
  CHECK(group[TokenMetric::expected_attention](0, 5) == 4);
  CHECK(group[TokenMetric::kvzip](0, 0) == 9);
  CHECK(group[TokenMetric::kvzip](0, 5) == 6);
  CHECK(group[TokenMetric::expected_attention](0, 0) == 4);  // the first four: the largest of the others
}

TEST_CASE("pairs come with every reserve, another window's metrics in place of the first's", "[agreement]") {
  Workers workers(2);
  const auto row = [](std::vector<double> values) {
    return Matrix<double>(Eigen::Map<const Matrix<double>>(values.data(), 1, std::ssize(values)));
  };
  TokenMetrics first, other;
  first[TokenMetric::key] = row({1, 2, 3, 4, 5, 6, 7, 8, 9, 0});
  first[TokenMetric::oracle_next] = row({1, 2, 3, 4, 5, 6, 7, 8, 9, 50});
  other[TokenMetric::key] = row({9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
  const auto pairs = token_pairs({TokenMetric::key, TokenMetric::oracle_next});
  REQUIRE(pairs.size() == 1);
  const GivenScores none;
  TokenRankings rankings(none, workers, 0);
  rankings.rank(first);
  const auto at_first = rankings.agreements(pairs, {0, 1});
  REQUIRE(at_first.size() == 2);
  CHECK(at_first[0][AgreementFigure::recall_20pc] == 0.5);  // {8, 7} of {9, 8}
  CHECK(at_first[1][AgreementFigure::recall_20pc] == 1);    // {9, 8}
  CHECK(at_first[1][AgreementFigure::spearman] == at_first[0][AgreementFigure::spearman]);
  rankings.rank(other);
  const auto at_other = rankings.agreements(pairs, {1});
  CHECK(at_other[0][AgreementFigure::recall_20pc] == 0.5);  // {9, 0}
  CHECK(at_other[0][AgreementFigure::mass_20pc] == Approx(51.0 / 95));
  CHECK(token_agreements(first, pairs, workers)[0][AgreementFigure::mass_20pc] ==
        at_first[0][AgreementFigure::mass_20pc]);
}
