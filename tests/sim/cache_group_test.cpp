
#include "sim/attention.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// The tokens of a cache: some of [0, total), all of the last `adjacent`.
std::vector<Index> tokens_of(Index total, Index adjacent, Index step) {
  std::vector<Index> tokens;
  for (Index p = 0; p < total; ++p)
    if (p >= total - adjacent || (p * 7919 + 3) % 1009 % step == 0) tokens.push_back(p);
  return tokens;
}

MetricSet metrics_of_a_cache() {
  MetricSet metrics = MetricSet::all();
  for (const TokenMetric metric : kTokenMetrics.all())
    if (kTokenMetrics[metric].kind == MetricKind::oracle ||
        kTokenMetrics[metric].rows == MetricRows::prompt || kTokenMetrics[metric].of_gradients)
      metrics.erase(metric);
  return metrics;
}

/// Logits of row i of the original group, hidden where the cache has no token.
Vector<double> cached_logits(const HeadGroup<double>& group, Index g, Index i,
                             const std::vector<Index>& tokens) {
  const Vector<double> z = attention_logits(group, g, i).z;
  Vector<double> cached = Vector<double>::Constant(z.size(), kHidden);
  for (const Index p : tokens) cached[p] = z[p];
  return cached;
}

struct Case {
  std::string name;
  GroupSpec spec;
  Index queries, step;
};

std::vector<Case> cases() {
  return {
      {"no sliding window", {.l = 40, .T = 44, .seed = 61}, 8, 3},
      {"sliding window 7", {.l = 40, .T = 44, .sliding_window = 7, .seed = 62}, 8, 3},
      {"sliding window 1", {.l = 40, .T = 40, .G = 1, .sliding_window = 1, .seed = 63}, 8, 2},
      {"sliding window, one query", {.l = 40, .T = 40, .sliding_window = 12, .seed = 64}, 1, 3},
      {"sliding window, few queries held",
       {.l = 40, .T = 44, .T_q = 11, .sliding_window = 15, .seed = 65},
       6,
       2},
      {"sliding window, a sink that leaves it",
       {.l = 40, .T = 40, .attention_sink = 20, .sliding_window = 13, .seed = 66},
       12,
       2},
      {"soft cap, sink logit, sliding window",
       {.l = 40,
        .T = 44,
        .G = 3,
        .d = 5,
        .d_v = 3,
        .logit_std = 5.0,
        .sliding_window = 16,
        .softcap = 8.0,
        .sink_logit = 1.0,
        .seed = 67},
       10,
       2},
      {"non-causal, sliding window",
       {.l = 40, .T = 40, .causal = false, .sliding_window = 16, .seed = 68},
       10,
       2},
      {"tiles, sliding window 90",
       {.l = 700, .T = 700, .G = 1, .d = 16, .sliding_window = 90, .seed = 69},
       150,
       2},
      {"tiles, sliding window 400",
       {.l = 1500, .T = 1500, .G = 1, .logit_std = 3.0, .sliding_window = 400, .seed = 70},
       70,
       2},
  };
}

}  // namespace

TEST_CASE("a cache's metrics agree with the reference, in tiles and by true positions", "[cache_group]") {
  Workers workers(1);
  for (const Case& c : cases()) {
    INFO(c.name);
    const HeadGroup<double> group = random_group(c.spec);
    const std::vector<Index> tokens = tokens_of(group.l, c.queries, c.step);
    REQUIRE(std::ssize(tokens) < group.l);
    const HeadGroup<double> cache = cache_group(group, tokens, c.queries);
    CHECK(cache.l == std::ssize(tokens));
    CHECK(cache.T_all() == cache.l);
    CHECK(cache.T_q() == c.queries);
    CHECK(cache.position.empty() == !c.spec.sliding_window);
    for (const Index window : {Index{1}, c.queries / 2 + 1, c.queries}) {
      const TokenOptions options{window, true, metrics_of_a_cache()};
      CHECK(mismatches(c.name, token_metrics_reference(cache, options),
                       token_metrics_cpu(cache, options, workers), kDouble) == "");
      const HeadGroup<float> narrow = converted<float>(cache);
      CHECK(mismatches(c.name, token_metrics_reference(converted<double>(narrow), options),
                       token_metrics_cpu(narrow, options, workers), kSingle) == "");
    }
  }
}

TEST_CASE("a cache's attention is that of the whole with the other tokens hidden", "[cache_group]") {
  for (const Case& c : cases()) {
    if (c.spec.l > 100) continue;
    INFO(c.name);
    const HeadGroup<double> group = random_group(c.spec);
    const std::vector<Index> tokens = tokens_of(group.l, c.queries, c.step);
    const HeadGroup<double> cache = cache_group(group, tokens, c.queries);
    const TokenOptions options{c.queries, true, {TokenMetric::attn, TokenMetric::exact_remove}};
    const TokenMetrics got = token_metrics_reference(cache, options);
    Matrix<double> attn = Matrix<double>::Zero(cache.G(), cache.l), removed = attn;
    double off = 0;
    for (Index g = 0; g < group.G(); ++g)
      for (Index i = group.l - c.queries; i < group.l; ++i) {
        Vector<double> z = cached_logits(group, g, i, tokens);
        const Vector<double> a = attention_weights(group, g, z), o = group.v.transpose() * a;
        const Vector<double> of_cache = attention_output(cache, g, i - group.l + cache.l);
        off = std::max(off, (of_cache - o).cwiseAbs().maxCoeff());
        for (Index n = 0; n < cache.l; ++n) {
          const Index p = tokens[n];
          attn(g, n) += a[p];
          const double kept = std::exchange(z[p], kHidden);
          if (a[p] > 0)
            removed(g, n) += (group.v.transpose() * attention_weights(group, g, z) - o).squaredNorm();
          z[p] = kept;
        }
      }
    CHECK(off < 1e-12);
    CHECK(mismatch("attn", attn, got[TokenMetric::attn], kDouble) == "");
    CHECK(mismatch("exact_remove", removed, got[TokenMetric::exact_remove], kDouble) == "");
  }
}

TEST_CASE("a cache of a cache is a cache", "[cache_group]") {
  const HeadGroup<double> group = random_group({.l = 60, .T = 60, .sliding_window = 25});
  const std::vector<Index> outer = tokens_of(60, 20, 2);
  const HeadGroup<double> cache = cache_group(group, outer, 20);
  const std::vector<Index> inner = tokens_of(cache.l, 12, 2);
  std::vector<Index> both;
  for (const Index n : inner) both.push_back(outer[n]);
  const HeadGroup<double> twice = cache_group(cache, inner, 12), once = cache_group(group, both, 12);
  CHECK(twice.k == once.k);
  CHECK(twice.v == once.v);
  CHECK(twice.q == once.q);
  CHECK(twice.position == once.position);
  CHECK(twice.l == once.l);
}

TEST_CASE("a kept set's outputs are those of the cache that it leaves", "[cache_group]") {
  Workers workers(1);
  const HeadGroup<double> group =
      random_group({.l = 300, .T = 340, .logit_std = 2.0, .sliding_window = 120, .sink_logit = 0.5});
  KeptSet kept(300, 0);
  std::vector<Index> tokens = tokens_of(300, 0, 3);
  for (const Index p : tokens) kept[p] = 1;
  for (Index p = 300; p < 340; ++p) tokens.push_back(p);
  const OutputChanges<double> changes = kept_changes(group, {300, 340}, std::span(&kept, 1), true, workers);
  const HeadGroup<double> cache = cache_group(group, tokens, 40);
  const OutputChanges<double> left =
      kept_changes(cache, {cache.l - 40, cache.l}, std::vector<KeptSet>{}, true, workers);
  double off = 0;
  for (std::size_t g = 0; g < group.q.size(); ++g)
    for (std::size_t n = 0; n < left.full[g].size(); ++n)
      off = std::max(off, std::abs(changes.full[g][n] + changes.change[0][g][n] - left.full[g][n]));
  CHECK(left.full_sq > 1);
  CHECK(off < 1e-12);
}

TEST_CASE("query heads by themselves add up to their group", "[cache_group]") {
  Workers workers(1);
  for (const GroupSpec& spec :
       {GroupSpec{.G = 3, .d_model = 7, .sink_logit = 1.0, .rope = rope_of(Rope::Style::half, 8)},
        GroupSpec{.T_q = 20, .G = 2, .sliding_window = 9}}) {
    const HeadGroup<double> group = random_group(spec);
    TokenOptions options{8, false, available_metrics(group)};
    for (const TokenMetric metric : kTokenMetrics.all())
      if (joins_heads(metric)) options.metrics.erase(metric);
    const TokenMetrics want = token_metrics_cpu(group, options, workers);
    TokenMetrics sum;
    for (Index g = 0; g < group.G(); ++g) {
      const HeadGroup<double> head = query_head_group(group, g);
      CHECK(head.G() == 1);
      CHECK(head.l == group.l);
      CHECK(head.T_q() == group.T_q());
      const TokenMetrics part = token_metrics_cpu(head, options, workers);
      for (const TokenMetric metric : kTokenMetrics.all()) {
        if (part[metric].size() == 0) continue;
        if (sum[metric].size() == 0)
          sum[metric] = part[metric];
        else if (kTokenMetrics[metric].heads == OverHeads::max)
          sum[metric] = sum[metric].cwiseMax(part[metric]);
        else
          sum[metric] += part[metric];
      }
    }
    for (const TokenMetric metric : kTokenMetrics.all()) {
      if (want[metric].size() == 0) continue;
      // What belongs to the KV head is the same for each; Expected Attention is a mean, its first tokens the
      // largest of the others.
      const bool mean =
          kTokenMetrics[metric].rows == MetricRows::none || metric == TokenMetric::expected_attention;
      if (mean) sum[metric] /= static_cast<double>(group.G());
      const Index from = metric == TokenMetric::expected_attention ? 4 : 0;
      CHECK(mismatch(std::string(name_of(metric)), want[metric].rightCols(group.l - from),
                     sum[metric].rightCols(group.l - from), kDouble) == "");
    }
  }
}
