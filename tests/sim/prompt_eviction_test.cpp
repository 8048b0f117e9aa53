#include "sim/eviction/prompt_eviction.hpp"

#include "data/error.hpp"
#include "sim/attention.hpp"
#include "sim/head_group.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random_group.hpp"

#include <cmath>
#include <complex>
#include <string>
#include <tuple>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Semantics kAllSemantics[] = {Semantics::paper, Semantics::official, Semantics::kvpress};

EvictionRule made(EvictionBase base, Semantics semantics, Index l, Index budget,
                  std::optional<TokenMetric> metric = {}, bool has_wo = false) {
  Policy policy;
  policy.base = base;
  policy.metric = metric;
  return rule_of(policy, semantics, {}, l, budget, has_wo);
}

EvictionRule ranking_by(TokenMetric metric, Index window) {
  EvictionRule rule;
  rule.metric = metric;
  rule.window = window;
  return rule;
}

template <class T>
Vector<double> scores_of(const HeadGroup<T>& group, const EvictionRule& rule) {
  Workers workers(1);
  return rule_scores(group, std::span(&rule, 1), {}, workers)[0];
}

std::string mismatch_of(const std::string& label, const Vector<double>& want, const Vector<double>& got,
                        const Tolerance& tolerance = kDouble) {
  return mismatch(label, Matrix<double>(want.transpose()), Matrix<double>(got.transpose()), tolerance);
}

}  // namespace

TEST_CASE("every metric and window ranks as the reference says", "[prompt_eviction]") {
  const Rope rope = rope_of(Rope::Style::half, 8);
  for (const GroupSpec& spec :
       {GroupSpec{.d_model = 6, .rope = rope}, GroupSpec{.T_q = 12, .G = 3, .sink_logit = 1.0},
        GroupSpec{.T = 40, .logit_std = 4.0, .attention_sink = 0, .sliding_window = 9, .softcap = 20.0},
        GroupSpec{.T_q = 3}, GroupSpec{.l = 1, .T = 1}, GroupSpec{.l = 5, .T = 6, .causal = false}}) {
    const HeadGroup<double> group = random_group(spec);
    const MetricSet there = available_metrics(group);
    std::vector<EvictionRule> rules;
    // Metrics without rows come first, in between and last: they go along with any window.
    for (const Index window : {Index{8}, Index{1}, group.l, Index{1000}})
      for (const TokenMetric metric : kTokenMetrics.all())
        if (there.contains(metric)) rules.push_back(ranking_by(metric, window));
    for (const TokenMetric metric : kTokenMetrics.all())
      if (there.contains(metric)) rules.insert(rules.begin(), ranking_by(metric, 17));
    Workers workers(2);
    const std::vector<Vector<double>> scores = rule_scores(group, rules, {}, workers);
    REQUIRE(scores.size() == rules.size());
    for (std::size_t r = 0; r < rules.size(); ++r) {
      const TokenMetrics want =
          token_metrics_reference(group, {.window = rules[r].window, .metrics = {*rules[r].metric}});
      CHECK(mismatch_of(std::string(name_of(*rules[r].metric)), want[*rules[r].metric].row(0).transpose(),
                        scores[r]) == "");
    }
  }
}

TEST_CASE("rules without a metric rank by position, by what was given or by a search", "[prompt_eviction]") {
  const HeadGroup<double> group = random_group({});
  const GivenScores given{Vector<double>::Zero(40), Vector<double>::LinSpaced(40, 3, -7)};
  std::vector<EvictionRule> rules(5);
  rules[0].policy.base = EvictionBase::streaming;
  rules[1].given = 1;
  rules[2].policy.base = EvictionBase::greedy_exact;
  rules[3].policy.base = EvictionBase::exchange;
  rules[4].policy.base = EvictionBase::exchange;
  rules[4].policy.start = EvictionBase::streaming;
  Workers workers(1);
  const std::vector<Vector<double>> scores = rule_scores(group, rules, given, workers);
  for (Index p = 0; p < 40; ++p) CHECK(scores[0][p] == static_cast<double>(p));
  CHECK(scores[1] == given[1]);
  CHECK(scores[2].size() == 0);
  CHECK(scores[3].size() == 0);
  CHECK(scores[4] == scores[0]);
  CHECK(scores_of(random_group({.l = 1, .T = 2}), rules[0]) == Vector<double>::Zero(1));
}

TEST_CASE("streaming keeps the first and the last", "[prompt_eviction]") {
  const HeadGroup<double> group = random_group({.l = 12, .T = 12});
  const auto kept = [&](Index budget) {
    const EvictionRule rule = made(EvictionBase::streaming, Semantics::paper, 12, budget);
    return positions(keep_by(rule, scores_of(group, rule), budget));
  };
  using Positions = std::vector<Index>;
  CHECK(kept(7) == Positions{0, 1, 2, 3, 9, 10, 11});
  CHECK(kept(4) == Positions{0, 1, 2, 3});
  CHECK(kept(2) == Positions{0, 1});
  CHECK(kept(0).empty());
}

// Queries of 0 spread their weight evenly: row i gives 1 / (i + 1) to each of its tokens.
TEST_CASE("kvpress divides H2O's sums by the rows that see a token", "[prompt_eviction]") {
  HeadGroup<double> group = random_group({.l = 4, .T = 4, .G = 2});
  for (HeadMatrix<double>& q : group.q) q.setZero();
  const auto kept = [&](const HeadGroup<double>& g, Semantics semantics, Index budget) {
    const EvictionRule rule = made(EvictionBase::h2o, semantics, 4, budget);
    return positions(keep_by(rule, scores_of(g, rule), budget));
  };
  using Positions = std::vector<Index>;
  // Means 25/48, 13/36, 7/24, 1/4.
  CHECK(kept(group, Semantics::kvpress, 1) == Positions{0});
  CHECK(kept(group, Semantics::kvpress, 3) == Positions{0, 1, 2});
  CHECK(kept(group, Semantics::paper, 2) == Positions{0, 3});
  // A query that looks at itself alone: sums 11/6, 5/6, 1/3, 1; means 11/24, 5/18, 1/6, 1.
  group.k.setZero();
  for (HeadMatrix<double>& q : group.q) q(3, 0) = 1e4;
  group.k(3, 0) = 1e4;
  CHECK(kept(group, Semantics::kvpress, 1) == Positions{3});
  CHECK(kept(group, Semantics::kvpress, 2) == Positions{0, 3});
  // With the queries of the last rows only, a token was seen by two rows at most: means 7/24, 7/24, 7/24,
  // 1/4.
  group = random_group({.l = 4, .T = 4, .T_q = 2, .G = 1});
  group.q[0].setZero();
  CHECK(kept(group, Semantics::kvpress, 1) == Positions{0});
  CHECK(kept(group, Semantics::kvpress, 3) == Positions{0, 1, 2});
}

namespace {

/// softmax over the candidates `first`..l-1 of the expected logit, [l - first]: half-style RoPE on all
/// channels, pairs of channels as complex numbers.
Vector<double> expected_weights(const HeadGroup<double>& group, std::size_t g, Index first = 4,
                                Index future = 512) {
  using Complex = std::complex<double>;
  using ComplexRows = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic>;
  const Index n = group.l - first, half = group.d() / 2;
  const auto turn = [&](Index p, Index j) {
    return std::polar(1.0, static_cast<double>(p) * group.rope->inv_freq[j]);
  };
  ComplexRows x(n, half);
  for (Index r = 0; r < n; ++r)
    for (Index j = 0; j < half; ++j)
      x(r, j) =
          Complex(group.q[g](first + r, j), group.q[g](first + r, j + half)) * std::conj(turn(first + r, j));
  for (Index j = 0; j < half; ++j) {
    Complex mean = 0;
    for (Index p = group.l; p < group.l + future; ++p) mean += turn(p, j) / static_cast<double>(future);
    x.col(j) *= mean;
  }
  Vector<double> e(n);
  for (Index c = 0; c < n; ++c) {
    Vector<double> z(n);  // what the averaged future queries give this key
    for (Index r = 0; r < n; ++r) {
      z[r] = 0;
      for (Index j = 0; j < half; ++j)
        z[r] += group.rule.scale *
                (x(r, j) * Complex(group.k(first + c, j), -group.k(first + c, j + half))).real();
    }
    e[c] = z.mean() + (z.array() - z.mean()).square().mean() / 2;
  }
  e = (e.array() - e.maxCoeff()).exp();
  return e / e.sum();
}

}  // namespace

TEST_CASE("Expected Attention takes other first tokens, future positions and epsilon", "[prompt_eviction]") {
  const HeadGroup<double> group =
      random_group({.G = 2, .d_v = 5, .logit_std = 2.0, .rope = rope_of(Rope::Style::half, 8, 100.0)});
  for (const auto& [first, future, epsilon] :
       {std::tuple<Index, Index, double>{0, 1, 0}, {1, 7, 0.5}, {9, 3000, 0}, {group.l - 1, 2, 0.1}}) {
    EvictionRule rule = made(EvictionBase::expected_attention, Semantics::kvpress, group.l, 10);
    rule.expected.n_sink = first;
    rule.expected.n_future = future;
    rule.expected.epsilon = epsilon;
    Vector<double> want = Vector<double>::Zero(group.l);
    for (std::size_t g = 0; g < 2; ++g) {
      const Vector<double> a = expected_weights(group, g, first, future);
      for (Index p = first; p < group.l; ++p) want[p] += (a[p - first] + epsilon) / 2 * group.v.row(p).norm();
    }
    want.head(first).setConstant(want.maxCoeff());
    CHECK(mismatch_of("", want, scores_of(group, rule)) == "");
  }
}

TEST_CASE("Expected Attention weighs values as each semantics does", "[prompt_eviction]") {
  const HeadGroup<double> group = random_group(
      {.G = 3, .d_v = 5, .d_model = 9, .logit_std = 2.0, .rope = rope_of(Rope::Style::half, 8, 100.0)});
  const Index n = group.l - 4;
  Vector<double> paper = Vector<double>::Zero(n), without_wo = paper, kvpress = paper;
  for (std::size_t g = 0; g < 3; ++g) {
    const Vector<double> a = expected_weights(group, g) / 3;
    for (Index c = 0; c < n; ++c) {
      const double norm = group.v.row(4 + c).norm();
      paper[c] += (a[c] + 0.02 / 3) * (group.v.row(4 + c) * group.wo[g]).norm();
      without_wo[c] += (a[c] + 0.02 / 3) * norm;
      kvpress[c] += a[c] * norm;
    }
  }
  const auto check = [&](const Vector<double>& want, Semantics semantics, bool has_wo) {
    const EvictionRule rule = made(EvictionBase::expected_attention, semantics, group.l, 10, {}, has_wo);
    const Vector<double> got = scores_of(group, rule);
    CHECK(mismatch_of("scores", want, got.tail(n)) == "");
    CHECK(got.head(4) == Vector<double>::Constant(4, got.tail(n).maxCoeff()));
    const std::vector<Index> first = positions(keep_by(rule, got, 4));
    CHECK(first == std::vector<Index>{0, 1, 2, 3});
    CHECK(mismatch_of("scores, float32", want, scores_of(converted<float>(group), rule).tail(n), kSingle) ==
          "");
  };
  check(paper, Semantics::paper, true);
  check(paper, Semantics::official, true);
  check(without_wo, Semantics::paper, false);
  check(kvpress, Semantics::kvpress, true);
}

TEST_CASE("scores beyond the type are an input error", "[prompt_eviction]") {
  HeadGroup<double> group = random_group({.rope = rope_of(Rope::Style::half, 8)});
  for (HeadMatrix<double>& q : group.q) q *= 1e25;
  for (const Semantics semantics : kAllSemantics) {
    const EvictionRule expected = made(EvictionBase::expected_attention, semantics, group.l, 10);
    CHECK_THROWS_AS(scores_of(converted<float>(group), expected), InputError);
    CHECK_NOTHROW(scores_of(group, expected));
  }
  for (HeadMatrix<double>& q : group.q) q *= 1e13;
  CHECK_THROWS_AS(scores_of(converted<float>(group), made(EvictionBase::h2o, Semantics::paper, group.l, 10)),
                  InputError);
  // One token's logits are infinity less infinity.
  group = random_group({.G = 1, .d = 2});
  group.q[0].col(0).setConstant(1e30);
  group.q[0].col(1).setConstant(-1e30);
  group.q_ref[0] = group.q[0].topRows(3);
  for (const Index at : {0, 20, 35, 39}) {
    HeadGroup<double> other = group;
    other.k.row(at).setConstant(1e30);
    for (const TokenMetric metric : kTokenMetrics.all()) {
      const TokenMetricFacts& facts = kTokenMetrics[metric];
      if (!available_metrics(other).contains(metric) || facts.rows == MetricRows::none || facts.on_host)
        continue;
      INFO(name_of(metric) << ", position " << at);
      CHECK_THROWS_AS(scores_of(converted<float>(other), ranking_by(metric, 8)), InputError);
    }
  }
}

TEST_CASE("a block that takes the whole prompt evicts in one shot", "[prompt_eviction]") {
  Workers workers(1);
  for (const GroupSpec& spec : {GroupSpec{}, GroupSpec{.T = 40, .G = 3, .logit_std = 4.0, .sink_logit = 1.0},
                                GroupSpec{.sliding_window = 9}}) {
    const HeadGroup<double> group = random_group(spec);
    for (const EvictionBase base : {EvictionBase::streaming, EvictionBase::h2o, EvictionBase::tova,
                                    EvictionBase::snapkv, EvictionBase::knorm, EvictionBase::keydiff})
      for (const Semantics semantics : kAllSemantics)
        for (const Index budget : {0, 1, 5, 11, 36, 39, 40}) {
          INFO(name_of(base) << ", " << name_of(semantics) << ", budget " << budget);
          const EvictionRule rule = made(base, semantics, group.l, budget);
          const Index held = group.held();
          const KeptSet want =
              behind(group.first_held(), keep_by(rule, scores_of(group, rule).tail(held), budget));
          CHECK(count(want) == std::min(budget, held));
          for (const Index block : {40, 41, 1000})
            CHECK(evict_in_blocks(group, rule, budget, block, workers) == want);
        }
  }
}

TEST_CASE("rules that need more than a block say why", "[prompt_eviction]") {
  using M = TokenMetric;
  const auto why = [](EvictionBase base, Semantics semantics, std::optional<M> metric = {}) {
    return why_not_in_blocks(made(base, semantics, 40, 10, metric)).has_value();
  };
  for (const EvictionBase base : {EvictionBase::streaming, EvictionBase::h2o, EvictionBase::snapkv,
                                  EvictionBase::knorm, EvictionBase::keydiff})
    for (const Semantics semantics : kAllSemantics) CHECK(!why(base, semantics));
  CHECK(!why(EvictionBase::tova, Semantics::paper));
  CHECK(why(EvictionBase::tova, Semantics::official));
  CHECK(why(EvictionBase::tova, Semantics::kvpress));
  for (const EvictionBase base :
       {EvictionBase::expected_attention, EvictionBase::leverage, EvictionBase::kvzip, EvictionBase::oracle,
        EvictionBase::oracle_exact, EvictionBase::greedy_exact, EvictionBase::greedy_loss,
        EvictionBase::greedy_leverage, EvictionBase::exchange})
    CHECK(why(base, Semantics::paper));
  CHECK(why(EvictionBase::h2o, Semantics::paper, M::oracle_next));
  CHECK(why(EvictionBase::snapkv, Semantics::paper, M::expected_attention));
  CHECK(why(EvictionBase::exchange, Semantics::paper, M::joint));
  CHECK(!why(EvictionBase::h2o, Semantics::paper, M::exact_remove));
  EvictionRule given = made(EvictionBase::h2o, Semantics::paper, 40, 10);
  given.metric = std::nullopt;
  given.given = 0;
  CHECK(why_not_in_blocks(given).has_value());
}

TEST_CASE("eviction in blocks stops where it is asked to", "[prompt_eviction]") {
  Workers stopped(1);
  stopped.stop();
  const EvictionRule streaming = made(EvictionBase::streaming, Semantics::paper, 40, 6);
  CHECK_THROWS_AS(evict_in_blocks(random_group({}), streaming, 6, 8, stopped), Interrupted);
}

TEST_CASE("a rule says from which row on it looks at queries", "[prompt_eviction]") {
  const DumpShape shape{.n_q = 1, .n_kv = 1, .d = 1, .d_v = 1, .T = 30, .T_q = 25, .l = 26};
  EvictionRule rule;
  CHECK(parts_of(rule, shape, false).first_row == 30);
  CHECK(parts_of(ranking_by(TokenMetric::keydiff, 8), shape, false).first_row == 30);
  CHECK(parts_of(ranking_by(TokenMetric::attn, 8), shape, false).first_row == 18);
  CHECK(parts_of(ranking_by(TokenMetric::attn, 40), shape, false).first_row == 5);
  CHECK(parts_of(ranking_by(TokenMetric::oracle_next, 8), shape, false).first_row == 26);
  CHECK(parts_of(ranking_by(TokenMetric::expected_attention, 8), shape, false).first_row == 5);
  CHECK(parts_of(ranking_by(TokenMetric::attn, 8), shape, true).first_row == 5);
  rule.window = 3;
  rule.per_visible_row = true;
  CHECK(parts_of(rule, shape, false).first_row == 23);
  rule.by = SearchBy::error;
  CHECK(parts_of(rule, shape, false).first_row == 5);
}
