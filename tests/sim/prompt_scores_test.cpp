#include "sim/tokens/prompt_scores.hpp"

#include "sim/eviction/policy.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

// LagKV, CUR, Q-Filters and DefensiveKV against their definitions and numbers found by hand, and CriticalKV's
// two stages. What kvpress and the authors' code make of the sample is in golden_scores_test.cpp.

namespace {

using M = TokenMetric;

std::vector<GroupSpec> long_prompts() {
  return {{.l = 393, .T = 400, .G = 2, .d = 7, .d_v = 5},
          {.l = 260, .T = 260, .G = 1, .d = 1, .d_v = 3},
          {.l = 259, .T = 262, .G = 3, .d = 3, .d_v = 2, .logit_std = 20},
          {.l = 389, .T = 400, .T_q = 20, .G = 4, .d = 5, .d_v = 1, .value_offset = 100},
          {.l = 300, .T = 301, .G = 2, .d = 4, .attention_sink = 9, .sink_logit = 2.0},
          {.l = 270, .T = 280, .G = 2, .d = 6, .sliding_window = 50, .softcap = 5.0},
          {.l = 300, .T = 300, .G = 2, .zero_token = 7, .causal = false}};
}

HeadGroup<double> of(const Matrix<double>& keys, const Matrix<double>& values,
                     const Matrix<double>& queries) {
  HeadGroup<double> group;
  group.l = keys.rows();
  group.rule.scale = 1;
  group.rule.causal = true;
  group.k = keys;
  group.v = values;
  group.q.emplace_back(queries);
  return group;
}

}  // namespace

TEST_CASE("scores of a whole prompt agree with their definitions", "[prompt_scores]") {
  Workers workers(2);
  for (const GroupSpec& spec : long_prompts()) {
    const HeadGroup<double> group = random_group(spec);
    const HeadGroup<float> single = to_float(group);
    for (const M metric : {M::lagkv, M::cur, M::qfilter, M::defensive})
      for (const Index window : {1, 32, 150}) {
        INFO(name_of(metric) << ", l = " << spec.l << ", window " << window);
        const Vector<double> want = prompt_score_reference(metric, group, window);
        const double room = 1e-11 * want.cwiseAbs().maxCoeff();
        CHECK((prompt_score(metric, group, window, workers) - want).cwiseAbs().maxCoeff() <= room);
        const Vector<double> rounded = prompt_score_reference(metric, to_double(single), window);
        const TokenMetrics found =
            token_metrics_cpu(single, {.window = window, .metrics = {metric}}, workers);
        CHECK((found[metric].row(0).transpose() - rounded).cwiseAbs().maxCoeff() <= room);
      }
  }
}

TEST_CASE("lagkv ranks each stretch by itself, between the first tokens and the last stretch",
          "[prompt_scores]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 4 + 3 * 128 + 10, .T = 400, .d = 5});
  const Vector<double> score = prompt_score(M::lagkv, group, 1, workers);
  CHECK((score.head(4).array() == 1).all());
  CHECK((score.tail(group.l - 260).array() == 1).all());
  for (const Index first : {4, 132}) {
    std::set<double> ranks(score.begin() + first, score.begin() + first + 128);
    CHECK(ranks.size() == 128);
    CHECK(*ranks.begin() == 0);
    CHECK(*ranks.rbegin() == 127.0 / 128);
  }
  // Only where a channel lies in the range of the next stretch counts.
  for (Index c = 0; c < group.d(); ++c) group.k.col(c) = 3.0 * group.k.col(c).array() - 7.0 * c;
  CHECK(prompt_score(M::lagkv, group, 1, workers) == score);
  // A channel that does not move says nothing, and neither does one channel alone.
  HeadGroup<double> flat = group;
  flat.k.setConstant(2);
  flat.v.setConstant(-1);
  const Vector<double> none = prompt_score(M::lagkv, flat, 1, workers);
  CHECK((none.segment(4, 256).array() == 0).all());
}

TEST_CASE("a prompt too short for lagkv is ranked by position", "[prompt_scores]") {
  Workers workers(1);
  for (const Index l : {1, 4, 5, 259}) {
    const Vector<double> score = prompt_score(M::lagkv, random_group({.l = l, .T = l, .d = 3}), 1, workers);
    for (Index p = 0; p < l; ++p)
      CHECK(score[p] == (p < 4 ? 1.0 : static_cast<double>(p - 4) / static_cast<double>(l - 4)));
  }
}

TEST_CASE("cur by hand", "[prompt_scores]") {
  Workers workers(1);
  Matrix<double> keys = Matrix<double>::Zero(18, 1), values = Matrix<double>::Ones(18, 1);
  keys(4, 0) = 1;
  keys(5, 0) = -2;
  keys(16, 0) = 3;
  keys(17, 0) = 1;
  // Shares of keys 1/5, 4/5 of 16 tokens and 9/10, 1/10 of two; of values 1/16 and 1/2.
  const double sum = 1.0 / 16 + 1.0 / 2;
  const Vector<double> score = prompt_score(M::cur, of(keys, values, keys), 1, workers);
  CHECK((score.head(4).array() == 1).all());
  CHECK(score[4] == Approx(0.2 / 16 / sum));
  CHECK(score[5] == Approx(0.8 / 16 / sum));
  CHECK(score[6] == 0);
  CHECK(score[16] == Approx(0.45 / sum));
  CHECK(score[17] == Approx(0.05 / sum));
  keys.setZero();
  CHECK(prompt_score(M::cur, of(keys, values, keys), 1, workers).tail(14).isZero(0));
}

TEST_CASE("qfilter by hand", "[prompt_scores]") {
  Workers workers(1);
  Matrix<double> keys(3, 2), queries(3, 2);
  keys << 5, 1, -1, 4, 0, 9;
  queries << 3, 4, 6, 8, -0.3, -0.4;
  HeadGroup<double> group = of(keys, keys, queries);
  const Vector<double> score = prompt_score(M::qfilter, group, 1, workers);  // along (0.6, 0.8)
  CHECK(score[0] == Approx(3.8));
  CHECK(score[1] == Approx(2.6));
  CHECK(score[2] == Approx(7.2));
  group.q.emplace_back(Matrix<double>::Zero(3, 2));  // asks nothing: half of the first's filter is left
  CHECK(prompt_score(M::qfilter, group, 1, workers)[0] == Approx(1.9));
  // Most queries say which way, however long the others are.
  queries.row(0) *= -100;
  CHECK(prompt_score(M::qfilter, of(keys, keys, queries), 1, workers)[0] == Approx(-3.8));
}

TEST_CASE("defensive by hand", "[prompt_scores]") {
  Workers workers(1);
  // Rows see the weights 1/8, 1/8, 1/2 and 1/8, 1/8 of five tokens; two rows are the window.
  Matrix<double> keys = Matrix<double>::Zero(5, 1), queries = Matrix<double>::Ones(5, 1);
  keys(2, 0) = std::log(4.0);
  const Vector<double> score = prompt_score(M::defensive, of(keys, keys, queries), 1, workers);
  // One row: four tokens before it, averaged over up to five, rescaled to their sum 7/8.
  const Vector<double> mean{{0.75 / 5, 0.875 / 5, 0.875 / 5, 0.75 / 5}};
  const Vector<double> scaled = mean * (0.875 / mean.sum());
  const double floor = scaled.mean();
  for (Index p = 0; p < 4; ++p) CHECK(score[p] == Approx(std::max(scaled[p], floor)));
  CHECK(score[4] == score.head(4).maxCoeff());
  // All rows are the window: nothing stands before it.
  CHECK(prompt_score(M::defensive, of(keys, keys, queries), 5, workers).isZero(0));
  // Of two heads the larger counts.
  HeadGroup<double> two = of(keys, keys, queries);
  two.q.emplace_back(3.0 * queries);
  CHECK((prompt_score(M::defensive, two, 1, workers).array() >= score.array() - 1e-15).all());
}

TEST_CASE("criticalkv keeps half by score, the rest by score times weight", "[prompt_scores][policy]") {
  EvictionRule rule;
  rule.two_stages = true;
  const Vector<double> scores{{0.5, 0.4, 0.3, 0.2, 0.1, 0.05}}, weights{{1, 1, 1, 2, 9, 100}};
  const auto kept = [&](Index budget) { return positions(keep_by(rule, scores, budget, weights)); };
  CHECK(kept(0).empty());
  CHECK(kept(1) == std::vector<Index>{5});  // the first stage has none of one
  CHECK(kept(2) == std::vector<Index>{0, 5});
  CHECK(kept(3) == std::vector<Index>{0, 4, 5});
  CHECK(kept(4) == std::vector<Index>{0, 1, 4, 5});
  CHECK(kept(6).size() == 6);
  rule.recent = 2;  // of what the pins leave half
  CHECK(kept(4) == std::vector<Index>{0, 3, 4, 5});
  rule.pins_in_first = true;  // or of all
  const Vector<double> other{{1, 1, 9, 2, 9, 100}};
  CHECK(positions(keep_by(rule, scores, 4, other)) == std::vector<Index>{0, 2, 4, 5});
  rule.pins_in_first = false;
  CHECK(positions(keep_by(rule, scores, 4, other)) == std::vector<Index>{0, 2, 4, 5});
}

TEST_CASE("weights of the second stage are sums of what W_O writes", "[prompt_scores]") {
  Workers workers(2);
  EvictionRule rule;
  CHECK(second_weights(random_group({.d_model = 4}), rule, workers).size() == 0);
  rule.two_stages = true;
  for (const GroupSpec& spec : {GroupSpec{.l = 1, .T = 3, .G = 1, .d_model = 1},
                                GroupSpec{.l = 70, .T = 80, .G = 3, .d_v = 5, .d_model = 11}}) {
    const HeadGroup<double> group = random_group(spec);
    const Vector<double> found = second_weights(group, rule, workers),
                         single = second_weights(to_float(group), rule, workers);
    REQUIRE(found.size() == group.l);
    for (Index p = 0; p < group.l; ++p) {
      double want = 0;
      for (Index g = 0; g < group.G(); ++g)
        for (Index c = 0; c < spec.d_model; ++c) {
          double written = 0;
          for (Index j = 0; j < group.d_v(); ++j) written += group.v(p, j) * group.wo[g](j, c);
          want += std::abs(written) / static_cast<double>(group.G());
        }
      CHECK(found[p] == Approx(want).epsilon(1e-13));
      CHECK(single[p] == Approx(want).epsilon(1e-5));
    }
  }
}
