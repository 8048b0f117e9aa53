#include "data/error.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <fmt/format.h>

#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

void check_double(const std::string& name, const HeadGroup<double>& group, const TokenOptions& options) {
  Workers workers(1);
  CHECK(mismatches(name + ", float64", token_metrics_reference(group, options),
                   token_metrics_cpu(group, options, workers), kDouble) == "");
}

void check_single(const std::string& name, const HeadGroup<float>& group, const TokenOptions& options) {
  Workers workers(1);
  CHECK(mismatches(name + ", float32", token_metrics_reference(to_double(group), options),
                   token_metrics_cpu(group, options, workers), kSingle) == "");
}

template <class T>
void check_threads(const TokenCase& token_case, const HeadGroup<T>& group) {
  Workers alone(1);
  const TokenMetrics want = token_metrics_cpu(group, token_case.options, alone);
  for (const int threads : {2, 3, 8}) {
    Workers workers(threads);
    const TokenMetrics got = token_metrics_cpu(group, token_case.options, workers);
    for (TokenMetric metric : kTokenMetrics.all()) {
      INFO(token_case.name << ": " << name_of(metric) << ", " << threads << " threads");
      CHECK(same_bytes(want[metric], got[metric]));
    }
  }
}

}  // namespace

TEST_CASE("the float64 CPU twin agrees with the reference on small cases", "[token_metrics]") {
  for (const TokenCase& token_case : small_token_cases())
    check_double(token_case.name, token_case.group(), token_case.options);
}

TEST_CASE("the float32 CPU twin agrees with the reference on small cases", "[token_metrics]") {
  for (const TokenCase& token_case : small_token_cases())
    check_single(token_case.name, to_float(token_case.group()), token_case.options);
}

// Both twins read the same float32 numbers: the reference, which takes most of the time, judges them at once.
TEST_CASE("either CPU twin agrees with the reference across tile edges", "[token_metrics]") {
  Workers workers(1);
  for (const TokenCase& token_case : large_token_cases()) {
    const HeadGroup<float> group = to_float(token_case.group());
    const HeadGroup<double> wide = to_double(group);
    const TokenOptions& options = token_case.options;
    const TokenMetrics want = token_metrics_reference(wide, options);
    CHECK(mismatches(token_case.name + ", float64", want, token_metrics_cpu(wide, options, workers),
                     kDouble) == "");
    CHECK(mismatches(token_case.name + ", float32", want, token_metrics_cpu(group, options, workers),
                     kSingle) == "");
  }
}

TEST_CASE("where one column holds all but 1e-13 float32 is as good as float64", "[token_metrics]") {
  Workers workers(1);
  for (const TokenCase& c : held_token_cases()) {
    check_double(c.name, c.group(), c.options);
    const HeadGroup<float> group = to_float(c.group());
    CHECK(mismatches(c.name + ", float32", token_metrics_reference(to_double(group), c.options),
                     token_metrics_cpu(group, c.options, workers), kDouble) == "");
  }
}

TEST_CASE("the CPU twin gives the same bytes with any number of threads", "[token_metrics]") {
  for (const TokenCase& token_case : small_token_cases()) {
    check_threads(token_case, token_case.group());
    check_threads(token_case, to_float(token_case.group()));
  }
  for (const TokenCase& token_case : large_token_cases()) {
    check_threads(token_case, to_float(token_case.group()));
  }
}

TEST_CASE("the CPU twin computes what it is asked for and nothing else", "[token_metrics]") {
  const HeadGroup<double> group = random_group({.rope = rope_of(Rope::Style::half, 8)});
  Workers workers(1);
  const TokenMetrics all = token_metrics_cpu(group, {.window = 8, .metrics = MetricSet::all()}, workers);
  for (TokenMetric asked : kTokenMetrics.all()) {
    const TokenMetrics only = token_metrics_cpu(group, {.window = 8, .metrics = {asked}}, workers);
    for (TokenMetric metric : kTokenMetrics.all()) {
      INFO("asked for " << name_of(asked) << ", got " << name_of(metric));
      if (metric == asked) {
        CHECK(mismatch("alone", all[metric], only[metric], kDouble) == "");
      } else {
        CHECK(only[metric].size() == 0);
      }
    }
  }
}

namespace {

template <class T>
void check_fewer_sums(const TokenCase& token_case, const HeadGroup<T>& group) {
  using M = TokenMetric;
  Workers workers(2);
  const TokenMetrics all = token_metrics_cpu(group, token_case.options, workers);
  for (const M metric : {M::attn, M::attn_sq, M::value, M::exact_value, M::caote, M::fastcaote}) {
    if (!token_case.options.metrics.contains(metric)) continue;
    INFO(token_case.name << ": " << name_of(metric));
    TokenOptions options = token_case.options;
    options.metrics = {metric};
    const TokenMetrics alone = token_metrics_cpu(group, options, workers);
    REQUIRE(alone[metric].size() > 0);
    if (window_rows(group.l, group.first_query(), options.window).count() == 1)  // weights that are no sums
      CHECK(mismatch("alone", all[metric], alone[metric], sizeof(T) == 4 ? kSingle : kDouble) == "");
    else
      CHECK(same_bytes(all[metric], alone[metric]));
  }
}

}  // namespace

TEST_CASE("metrics of few sums are those that come with the rest, to the bit", "[token_metrics]") {
  for (const std::vector<TokenCase>& cases : {small_token_cases(), large_token_cases()})
    for (const TokenCase& token_case : cases) {
      check_fewer_sums(token_case, token_case.group());
      check_fewer_sums(token_case, to_float(token_case.group()));
    }
}

TEST_CASE("the weights of one row are those of the reference, whatever the threads", "[token_metrics]") {
  for (const std::vector<TokenCase>& cases : {small_token_cases(), large_token_cases()})
    for (const TokenCase& token_case : cases) {
      const HeadGroup<double> group = token_case.group();
      TokenOptions options = token_case.options;
      if (!options.metrics.contains(TokenMetric::attn)) continue;
      options.window = 1;
      options.metrics = {TokenMetric::attn, TokenMetric::attn_sq};
      check_double(token_case.name, group, options);
      check_single(token_case.name, to_float(group), options);
      Workers one(1), four(4);
      const TokenMetrics a = token_metrics_cpu(to_float(group), options, one),
                         b = token_metrics_cpu(to_float(group), options, four);
      CHECK(same_bytes(a[TokenMetric::attn], b[TokenMetric::attn]));
    }
}

TEST_CASE("one row of logits beyond the type is an input error", "[token_metrics]") {
  HeadGroup<float> group = to_float(random_group({.l = 40, .T = 44, .G = 2}));
  const TokenOptions options{.window = 1, .metrics = {TokenMetric::attn}};
  Workers workers(1);
  group.k.row(7) = 3e38F * group.q[1].row(39 - group.first_query()).cwiseSign();
  CHECK_THROWS_AS(token_metrics_cpu(group, options, workers), InputError);
}

TEST_CASE("sums of weights do not read the values", "[token_metrics]") {
  HeadGroup<float> group = to_float(random_group({.l = 40, .T = 44, .G = 2}));
  const TokenOptions options{.window = 8, .metrics = {TokenMetric::attn}};
  Workers workers(1);
  const TokenMetrics before = token_metrics_cpu(group, options, workers);
  group.v.setConstant(3e38F);  // whose squares are beyond float32
  CHECK(same_bytes(before[TokenMetric::attn], token_metrics_cpu(group, options, workers)[TokenMetric::attn]));
}

namespace {

/// One query head of which the first `copies` tokens have the same key and value and lead all others by about
/// `lead` nats.
HeadGroup<double> led_by_copies(Index l, Index copies, double lead) {
  HeadGroup<double> group =
      random_group({.l = l, .T = l, .G = 1, .d = 16, .d_v = 16, .logit_std = 0.3, .seed = 5});
  group.q[0].col(0).setConstant(1 / group.rule.scale);
  group.k.col(0).setZero();
  group.k(0, 0) = lead;
  for (Index p = 1; p < copies; ++p) {
    group.k.row(p) = group.k.row(0);
    group.v.row(p) = group.v.row(0);
  }
  return group;
}

TokenOptions window_only(Index window) {
  TokenOptions options;
  options.window = window;
  for (const TokenMetric metric : kTokenMetrics.all())
    if (kTokenMetrics[metric].kind == MetricKind::oracle || kTokenMetrics[metric].rows == MetricRows::prompt)
      options.metrics.erase(metric);
  return options;
}

}  // namespace

// As near to the output as a sink, but none of them a row's largest column by itself.
TEST_CASE("repeated tokens that hold nearly all the weight together keep their digits", "[token_metrics]") {
  check_single("copies lead by 5", to_float(led_by_copies(130, 40, 5)), window_only(20));
  for (const double lead : {5.0, 8.0, 12.0})
    check_double("copies lead by " + std::to_string(lead), led_by_copies(130, 40, lead), window_only(20));
}

TEST_CASE("one token leading every row by 150 nats leaves caote its digits in float32", "[token_metrics]") {
  check_single("lead of 150", to_float(led_by_copies(50, 1, 150)), window_only(20));
}

TEST_CASE("logits and values beyond the type are an input error, not a number", "[token_metrics]") {
  Workers workers(2);
  const auto overflow = [&](double queries, double values) {
    HeadGroup<double> group = random_group({.l = 20, .T = 24});
    for (HeadMatrix<double>& q : group.q) q *= queries;
    group.v *= values;
    return to_float(group);
  };
  CHECK_NOTHROW(token_metrics_cpu(overflow(1, 1), window_only(8), workers));
  CHECK_THROWS_AS(token_metrics_cpu(overflow(1e38, 1), window_only(8), workers), InputError);
  CHECK_THROWS_AS(token_metrics_cpu(overflow(1, 1e25), window_only(8), workers), InputError);
}
