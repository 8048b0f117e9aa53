#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("names, kinds and units", "[token_metrics]") {
  std::set<std::string> names;
  for (TokenMetric metric : kTokenMetrics.all()) {
    names.insert(std::string(name_of(metric)));
    CHECK(kTokenMetrics.named(name_of(metric)) == metric);
  }
  CHECK(names == std::set<std::string>{
                     "attn",         "attn_sq",    "value",       "key",           "joint",
                     "caote",        "fastcaote",  "knorm",       "keydiff",       "expected_attention",
                     "leverage",     "kvzip",      "exact_value", "exact_key",     "exact_joint",
                     "exact_remove", "exact_loss", "oracle_next", "oracle_future", "oracle_importance",
                     "oracle_loss",  "lagkv",      "cur",         "qfilter",       "defensive",
                     "kvzip_plus",   "rkv",        "triattention"});
  CHECK(!kTokenMetrics.named(""));
  CHECK(!kTokenMetrics.named("Attn"));
  CHECK(!kTokenMetrics.named("attn "));
  CHECK(name_of(TokenMetric::oracle_importance) == "oracle_importance");

  CHECK(kTokenMetrics[TokenMetric::joint].kind == MetricKind::score);
  CHECK(kTokenMetrics[TokenMetric::exact_value].kind == MetricKind::exact);
  CHECK(kTokenMetrics[TokenMetric::oracle_importance].kind == MetricKind::oracle);
  std::set<std::string> squared_outputs;
  for (TokenMetric metric : kTokenMetrics.all()) {
    if (kTokenMetrics[metric].unit == MetricUnit::squared_output)
      squared_outputs.insert(std::string(name_of(metric)));
  }
  CHECK(squared_outputs == std::set<std::string>{"value", "key", "joint", "leverage", "exact_value",
                                                 "exact_key", "exact_joint", "exact_remove", "oracle_next",
                                                 "oracle_future"});
  CHECK(kTokenMetrics[TokenMetric::attn].unit == MetricUnit::weight);
  CHECK(kTokenMetrics[TokenMetric::attn_sq].unit == MetricUnit::squared_weight);
  CHECK(kTokenMetrics[TokenMetric::caote].unit == MetricUnit::output);
  CHECK(kTokenMetrics[TokenMetric::oracle_importance].unit == MetricUnit::output);
  CHECK(kTokenMetrics[TokenMetric::exact_loss].unit == MetricUnit::nats);
  CHECK(kTokenMetrics[TokenMetric::oracle_loss].unit == MetricUnit::nats);
  CHECK(kTokenMetrics[TokenMetric::keydiff].unit == MetricUnit::other);
}

TEST_CASE("window and future rows are clipped to the prompt and the queries", "[token_metrics]") {
  const auto is = [](RowRange rows, Index begin, Index end) {
    return rows.begin == begin && rows.end == end;
  };
  CHECK(is(window_rows(40, 0, 8), 32, 40));
  CHECK(is(window_rows(40, 0, 40), 0, 40));
  CHECK(is(window_rows(40, 0, 41), 0, 40));
  CHECK(is(window_rows(40, 36, 8), 36, 40));
  CHECK(window_rows(40, 40, 8).count() == 0);
  CHECK(window_rows(40, 45, 8).count() == 0);
  CHECK(is(future_rows(40, 48, 0), 40, 48));
  CHECK(is(future_rows(40, 48, 40), 40, 48));
  CHECK(future_rows(40, 40, 0).count() == 0);
  CHECK(is(future_rows(40, 48, 41), 41, 48));
}

TEST_CASE("a single candidate", "[token_metrics]") {
  const HeadGroup<double> group = random_group({.l = 1, .T = 1, .G = 2});
  const TokenMetrics metrics = token_metrics_reference(group, {1, true, available_metrics(group)});
  const double norm = group.v.row(0).norm();
  for (Index g = 0; g < 2; ++g) {
    CHECK(metrics[TokenMetric::attn](g, 0) == 1.0);
    CHECK(metrics[TokenMetric::key](g, 0) == 0.0);
    CHECK(metrics[TokenMetric::caote](g, 0) == Approx(norm));
    CHECK(metrics[TokenMetric::fastcaote](g, 0) == 0.0);
    CHECK(metrics[TokenMetric::keydiff](g, 0) == Approx(-1.0));
    CHECK(metrics[TokenMetric::exact_key](g, 0) == 0.0);
    CHECK(metrics[TokenMetric::exact_value](g, 0) == Approx(norm * norm));
    CHECK(metrics[TokenMetric::exact_joint](g, 0) == Approx(norm * norm));
    CHECK(metrics[TokenMetric::exact_remove](g, 0) == Approx(norm * norm));
  }
}

TEST_CASE("one candidate holds all the attention", "[token_metrics]") {
  // sliding window 1 and window 1: row l - 1 sees itself only
  HeadGroup<double> group = random_group({.G = 1, .sliding_window = 1});
  const Index p = group.l - 1;
  TokenMetrics metrics = token_metrics_reference(group, {1, false, available_metrics(group)});
  CHECK(metrics[TokenMetric::caote](0, p) == Approx(group.v.row(p).norm()));
  const Vector<double> mean = group.v.topRows(group.l).colwise().mean().transpose();
  CHECK(metrics[TokenMetric::fastcaote](0, p) == Approx((mean - group.v.row(p).transpose()).norm()));
  CHECK(metrics[TokenMetric::caote].leftCols(p).isZero(0.0));
  CHECK(metrics[TokenMetric::fastcaote].leftCols(p).isZero(0.0));
  CHECK(metrics[TokenMetric::exact_remove].leftCols(p).isZero(0.0));

  group.v.setConstant(2.0);  // every value is the mean: nothing is lost
  metrics = token_metrics_reference(group, {1, false, available_metrics(group)});
  CHECK(metrics[TokenMetric::fastcaote].isZero(0.0));
}

TEST_CASE("zero keys and values", "[token_metrics]") {
  HeadGroup<double> group = random_group({});
  group.k.row(3).setZero();
  group.v.row(4).setZero();
  TokenMetrics metrics = token_metrics_reference(group, {8, false, available_metrics(group)});
  CHECK(metrics[TokenMetric::knorm](0, 3) == 0.0);
  CHECK(metrics[TokenMetric::keydiff](0, 3) == 0.0);
  CHECK((metrics[TokenMetric::keydiff].array() != 0.0).count() == group.l - 1);
  CHECK(metrics[TokenMetric::key](0, 3) == 0.0);
  CHECK(metrics[TokenMetric::exact_key](0, 3) == 0.0);
  CHECK(metrics[TokenMetric::value](0, 4) == 0.0);
  CHECK(metrics[TokenMetric::exact_value](0, 4) == 0.0);
  CHECK(metrics[TokenMetric::exact_remove](0, 4) > 0.0);
  CHECK(metrics[TokenMetric::oracle_importance](0, 4) == 0.0);

  group.k.setZero();
  metrics = token_metrics_reference(group, {8, false, available_metrics(group)});
  CHECK(metrics[TokenMetric::keydiff].isZero(0.0));
  CHECK(metrics[TokenMetric::key].isZero(0.0));
  CHECK(metrics[TokenMetric::exact_key].isZero(0.0));
  CHECK(metrics[TokenMetric::exact_joint].isApprox(metrics[TokenMetric::exact_value], 1e-12));
}

TEST_CASE("a sink logit that takes everything leaves zeros, not NaN", "[token_metrics]") {
  const HeadGroup<double> group = random_group({.d_model = 4, .sink_logit = 1000.0});
  const TokenMetrics metrics = token_metrics_reference(group, {8, false, available_metrics(group)});
  for (TokenMetric metric : kTokenMetrics.all()) {
    const TokenMetricFacts& facts = kTokenMetrics[metric];
    if (facts.rows == MetricRows::none || (facts.linear && metric != TokenMetric::attn)) continue;  // of keys
    INFO(name_of(metric));
    CHECK(metrics[metric].isZero(0.0));
  }
}

TEST_CASE("expected attention is refused where it cannot be computed", "[token_metrics]") {
  const TokenOptions options{8, false, {TokenMetric::expected_attention}};
  const Rope rope = rope_of(Rope::Style::half, 8);
  CHECK_THROWS_AS(token_metrics_reference(random_group({}), options), std::invalid_argument);
  CHECK_THROWS_AS(token_metrics_reference(random_group({.l = 4, .T = 8, .rope = rope}), options),
                  std::invalid_argument);
  CHECK_THROWS_AS(token_metrics_reference(random_group({.T_q = 20, .rope = rope}), options),
                  std::invalid_argument);
}

TEST_CASE("a group whose rule was given no scale is refused", "[token_metrics][kept_outputs]") {
  HeadGroup<float> group = to_float(random_group({.l = 20, .T = 24}));
  group.rule.scale = AttentionRule().scale;
  Workers workers(1);
  const std::string refusal = "attention rule: expected a scale, 1 / sqrt(d) in most models, found none";
  for (const TokenMetric metric : {TokenMetric::attn, TokenMetric::joint, TokenMetric::exact_remove})
    CHECK_THROWS_WITH(token_metrics_cpu(group, {8, false, {metric}}, workers), refusal);
  const KeptSet kept(20, 1);
  CHECK_THROWS_WITH(kept_changes<float>(group, {20, 24}, {&kept, 1}, false, workers), refusal);
}
