#include "sim/least_squares/reference_rows.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

// What must hold of the reference whatever the numbers are.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr TokenMetric kWindowSums[] = {
    TokenMetric::attn,      TokenMetric::attn_sq,     TokenMetric::value,
    TokenMetric::key,       TokenMetric::joint,       TokenMetric::exact_value,
    TokenMetric::exact_key, TokenMetric::exact_joint, TokenMetric::exact_remove};

/// Two ways to the same float64 number: rounding only.
constexpr Tolerance kRounding{1e-12, 1e-9, 1e-12, 0.0};

TokenMetrics reference(const HeadGroup<double>& group, Index window, bool per_query_head = false) {
  return token_metrics_reference(group, {window, per_query_head, available_metrics(group)});
}

void check_same(const std::string& label, const TokenMetrics& want, const TokenMetrics& got) {
  for (TokenMetric metric : kTokenMetrics.all()) {
    CHECK(mismatch(label + ": " + std::string(name_of(metric)), want[metric], got[metric], kRounding) == "");
  }
}

GroupSpec with_rope(GroupSpec spec = {}) {
  spec.rope = rope_of(Rope::Style::half, 8);
  return spec;
}

}  // namespace

TEST_CASE("every metric is finite, of shape [1, l], and errors are not negative", "[laws]") {
  for (const TokenCase& token_case : small_token_cases()) {
    INFO(token_case.name);
    const HeadGroup<double> group = token_case.group();
    const TokenMetrics metrics = token_metrics_reference(group, token_case.options);
    for (TokenMetric metric : kTokenMetrics.all()) {
      INFO(name_of(metric));
      if (!token_case.options.metrics.contains(metric)) {
        CHECK(metrics[metric].size() == 0);
        continue;
      }
      REQUIRE(metrics[metric].rows() == (token_case.options.per_query_head ? group.G() : 1));
      REQUIRE(metrics[metric].cols() == group.l);
      CHECK(!metrics[metric].hasNaN());
      if (metric != TokenMetric::fastcaote) CHECK(metrics[metric].allFinite());
      if (!kTokenMetrics[metric].linear || metric == TokenMetric::attn)
        CHECK(metrics[metric].minCoeff() >= 0.0);
    }
  }
}

TEST_CASE("exact_value is value", "[laws]") {
  for (const TokenCase& token_case : small_token_cases()) {
    if (!token_case.options.metrics.contains(TokenMetric::value)) continue;
    const TokenMetrics metrics = token_metrics_reference(token_case.group(), token_case.options);
    CHECK(mismatch(token_case.name, metrics[TokenMetric::value], metrics[TokenMetric::exact_value],
                   kRounding) == "");
  }
}

TEST_CASE("a row's weights add up to 1", "[laws]") {
  const TokenMetrics metrics = reference(random_group({.G = 3}), 8);
  CHECK(metrics[TokenMetric::attn].sum() == Approx(3 * 8).epsilon(1e-13));
}

TEST_CASE("the heads of a group add up to its row, or have it as their mean", "[laws]") {
  for (const Index G : {1, 2, 4}) {
    const HeadGroup<double> group = random_group(with_rope({.G = G, .d_model = 5}));
    const TokenMetrics heads = reference(group, 8, true);
    const TokenMetrics sums = reference(group, 8);
    for (TokenMetric metric : kTokenMetrics.all()) {
      const bool same = kTokenMetrics[metric].heads == OverHeads::same;
      if (metric == TokenMetric::expected_attention) {
        const Matrix<double> mean = heads[metric].rightCols(group.l - 4).colwise().mean();
        CHECK(mismatch("mean", sums[metric].rightCols(group.l - 4), mean, kRounding) == "");
      } else if (same) {
        CHECK(heads[metric] == sums[metric].replicate(G, 1));
      } else if (kTokenMetrics[metric].heads == OverHeads::max) {
        CHECK(sums[metric] == heads[metric].colwise().maxCoeff());
      } else {
        CHECK(mismatch("sum", sums[metric], heads[metric].colwise().sum(), kRounding) == "");
      }
    }
    for (Index g = 0; g < G; ++g) {
      const TokenMetrics one = reference(query_head_group(group, g), 8);
      for (TokenMetric metric : kTokenMetrics.all())
        if (!joins_heads(metric))
          CHECK(mismatch("alone", one[metric], heads[metric].row(g), kRounding) == "");
    }
  }
}

TEST_CASE("window sums are the sums of their rows", "[laws]") {
  const HeadGroup<double> group = random_group({.sliding_window = 20, .sink_logit = 0.5});
  const TokenMetrics window = reference(group, 9);
  TokenMetrics sums;
  for (TokenMetric metric : kWindowSums) sums[metric].setZero(1, group.l);
  for (Index i = group.l - 9; i < group.l; ++i) {
    HeadGroup<double> row = group;
    row.l = i + 1;
    const TokenMetrics one = reference(row, 1);
    for (TokenMetric metric : kWindowSums) sums[metric].leftCols(row.l) += one[metric];
  }
  for (TokenMetric metric : kWindowSums) {
    CHECK(mismatch(std::string(name_of(metric)), sums[metric], window[metric], kRounding) == "");
  }
}

TEST_CASE("oracles are exact_remove on the decoding steps", "[laws]") {
  const HeadGroup<double> group = random_group({.G = 3});
  const TokenMetrics metrics = reference(group, 8);
  HeadGroup<double> decoded = group;
  decoded.l = group.T_all();
  const TokenMetrics all = reference(decoded, group.T_all() - group.l);
  CHECK(mismatch("future", all[TokenMetric::exact_remove].leftCols(group.l),
                 metrics[TokenMetric::oracle_future], kRounding) == "");
  decoded.l = group.l + 1;
  const TokenMetrics next = reference(decoded, 1);
  CHECK(mismatch("next", next[TokenMetric::exact_remove].leftCols(group.l), metrics[TokenMetric::oracle_next],
                 kRounding) == "");
}

TEST_CASE("permuting keys with their values permutes the metrics", "[laws]") {
  // not causal, so that order means nothing; the first 4 stay, which expected attention treats apart
  HeadGroup<double> group = random_group(with_rope({.d_model = 6, .causal = false}));
  std::vector<Index> order(group.l);
  std::iota(order.begin(), order.end(), Index{0});
  std::rotate(order.begin() + 4, order.begin() + 17, order.end());
  HeadGroup<double> permuted = group;
  for (Index p = 0; p < group.l; ++p) {
    permuted.k.row(p) = group.k.row(order[p]);
    permuted.v.row(p) = group.v.row(order[p]);
  }
  TokenMetrics want = reference(group, 8), got = reference(permuted, 8);
  for (const TokenMetric of_neighbours :
       {TokenMetric::lagkv, TokenMetric::cur, TokenMetric::defensive, TokenMetric::rkv})
    want[of_neighbours] = got[of_neighbours] = Matrix<double>();
  for (Matrix<double>& values : want.values) {
    if (values.size() == 0) continue;
    const Matrix<double> before = values;
    for (Index p = 0; p < group.l; ++p) values.col(p) = before.col(order[p]);
  }
  check_same("permuted", want, got);
}

TEST_CASE("values times s: errors times s^2, norms times s, weights as they were", "[laws]") {
  const HeadGroup<double> group = random_group(with_rope({.d_model = 6, .sink_logit = -0.5}));
  HeadGroup<double> scaled = group;
  scaled.v *= -3.0;
  TokenMetrics want = reference(group, 8);
  for (TokenMetric metric : kTokenMetrics.all()) {
    const MetricUnit unit = kTokenMetrics[metric].unit;
    if (unit == MetricUnit::squared_output || unit == MetricUnit::nats) want[metric] *= 9.0;
    if (kTokenMetrics[metric].unit == MetricUnit::output || metric == TokenMetric::expected_attention ||
        metric == TokenMetric::kvzip_plus)
      want[metric] *= 3.0;
  }
  check_same("scaled", want, reference(scaled, 8));
}

TEST_CASE("one vector added to all values changes only what depends on ||v||", "[laws]") {
  const HeadGroup<double> group = random_group({});
  HeadGroup<double> moved = group;
  moved.v.rowwise() += Eigen::RowVectorXd::LinSpaced(group.d_v(), -1.0, 2.0);
  const TokenMetrics want = reference(group, 8);
  const TokenMetrics got = reference(moved, 8);
  for (TokenMetric metric :
       {TokenMetric::key, TokenMetric::caote, TokenMetric::fastcaote, TokenMetric::exact_key,
        TokenMetric::exact_remove, TokenMetric::exact_loss, TokenMetric::oracle_next,
        TokenMetric::oracle_future, TokenMetric::oracle_loss}) {
    CHECK(mismatch(std::string(name_of(metric)), want[metric], got[metric], {1e-11, 1e-8, 1e-12, 0.0}) == "");
  }
}

TEST_CASE("equal values: removing any of them changes nothing", "[laws]") {
  HeadGroup<double> group = random_group({});
  group.v.rowwise() = group.v.row(0).eval();
  const TokenMetrics metrics = reference(group, 8);
  for (TokenMetric metric :
       {TokenMetric::key, TokenMetric::exact_key, TokenMetric::exact_remove, TokenMetric::oracle_future}) {
    CHECK(metrics[metric].maxCoeff() < 1e-28);
  }
}

TEST_CASE("rules that do not bind change nothing", "[laws]") {
  const HeadGroup<double> group = random_group(with_rope());
  const TokenMetrics want = reference(group, 8);
  HeadGroup<double> same = group;
  same.rule.sliding_window = group.T_all() + kShiftedPositions;
  check_same("sliding window beyond all queries", want, reference(same, 8));
  same = group;
  same.rule.softcap = 1e9;
  check_same("soft cap of 1e9", want, reference(same, 8));
  same = group;
  same.rule.sink_logit = {-1000.0, -1000.0};
  check_same("sink logit of -1000", want, reference(same, 8));
  same = group;
  for (Index g = 0; g < group.G(); ++g) {
    same.q[g] = group.q[g].bottomRows(17);
  }
  const TokenMetrics fewer = reference(same, 8);
  for (TokenMetric metric : kTokenMetrics.all()) {
    const MetricRows rows = kTokenMetrics[metric].rows;
    if (rows != MetricRows::prompt && rows != MetricRows::asked) CHECK(fewer[metric] == want[metric]);
  }
  CHECK(fewer[TokenMetric::expected_attention].size() == 0);
}

TEST_CASE("what comes after a causal row does not reach it", "[laws]") {
  const HeadGroup<double> group = random_group({});
  HeadGroup<double> other = group;
  other.k.bottomRows(8).setConstant(7.0);
  other.v.bottomRows(8).setConstant(-9.0);
  const TokenMetrics want = reference(group, 8);
  const TokenMetrics got = reference(other, 8);
  for (TokenMetric metric : kTokenMetrics.all()) {
    if (kTokenMetrics[metric].kind != MetricKind::oracle) CHECK(got[metric] == want[metric]);
  }
}

TEST_CASE("more logit for all tokens leaves the weights alone", "[laws]") {
  HeadGroup<double> group = random_group({.logit_shift = 1.0});
  HeadGroup<double> shifted = group;
  shifted.k.col(0) *= 150.0;
  const TokenMetrics want = reference(group, 8);
  const TokenMetrics got = reference(shifted, 8);
  for (TokenMetric metric :
       {TokenMetric::attn, TokenMetric::value, TokenMetric::caote, TokenMetric::exact_value,
        TokenMetric::exact_remove, TokenMetric::oracle_future, TokenMetric::oracle_importance}) {
    CHECK(mismatch(std::string(name_of(metric)), want[metric], got[metric], {1e-11, 1e-8, 1e-12, 0.0}) == "");
  }
  // Taylor scores grow with z^2, exact errors do not: a key of logit 150 that is zeroed is a key removed
  CHECK(got[TokenMetric::key].minCoeff() > 1e3 * want[TokenMetric::key].minCoeff());
  CHECK(mismatch("key zeroed", got[TokenMetric::exact_remove], got[TokenMetric::exact_key], kRounding) == "");
}

TEST_CASE("oracle_importance measures values by what the output projection makes of them", "[laws]") {
  HeadGroup<double> group = random_group({.G = 2});
  const Matrix<double> plain = reference(group, 8)[TokenMetric::oracle_importance];
  group.wo.assign(2, Matrix<double>::Identity(8, 8));
  CHECK(mismatch("identity", plain, reference(group, 8)[TokenMetric::oracle_importance], kRounding) == "");
  group.wo.assign(2, Matrix<double>::Zero(8, 12));
  for (Matrix<double>& wo : group.wo) wo.rightCols(8).setIdentity() *= -2.0;
  CHECK(mismatch("-2 I", 2.0 * plain, reference(group, 8)[TokenMetric::oracle_importance], kRounding) == "");
}

TEST_CASE("expected attention: the first 4 rank above all, in both styles alike", "[laws]") {
  const HeadGroup<double> half = random_group({.d = 10, .rope = rope_of(Rope::Style::half, 8)});
  HeadGroup<double> interleaved = half;
  interleaved.rope->style = Rope::Style::interleaved;
  for (Index j = 0; j < 4; ++j) {
    const auto move = [j](HeadMatrix<double>& to, const HeadMatrix<double>& from) {
      to.col(2 * j) = from.col(j);
      to.col(2 * j + 1) = from.col(j + 4);
    };
    move(interleaved.k, half.k);
    for (std::size_t g = 0; g < half.q.size(); ++g) move(interleaved.q[g], half.q[g]);
  }
  const Matrix<double> want = reference(half, 8)[TokenMetric::expected_attention];
  CHECK(mismatch("interleaved", want, reference(interleaved, 8)[TokenMetric::expected_attention],
                 kRounding) == "");
  for (Index p = 0; p < 4; ++p) CHECK(want(0, p) == want.maxCoeff());

  HeadGroup<double> amplified = half;  // the factor is undone with the rotation, and comes back with it
  amplified.rope->attention_factor = 1.7;
  const Matrix<double> got = reference(amplified, 8)[TokenMetric::expected_attention];
  HeadGroup<double> all_rotated = random_group({.d = 8, .rope = rope_of(Rope::Style::half, 8)});
  const Matrix<double> before = reference(all_rotated, 8)[TokenMetric::expected_attention];
  all_rotated.rope->attention_factor = 1.7;
  CHECK(mismatch("factor", before, reference(all_rotated, 8)[TokenMetric::expected_attention], kRounding) ==
        "");
  CHECK(mismatch("factor, unrotated channels", want, got, kRounding) == "");
}
