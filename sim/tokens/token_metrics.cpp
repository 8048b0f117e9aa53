#include "sim/tokens/token_metrics.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

struct MetricFacts {
  TokenMetric metric;
  std::string_view name;
  MetricKind kind;
  MetricUnit unit;
};

constexpr std::array<MetricFacts, kTokenMetrics> kMetricFacts{{
    {TokenMetric::attn, "attn", MetricKind::score, MetricUnit::weight},
    {TokenMetric::attn_sq, "attn_sq", MetricKind::score, MetricUnit::squared_weight},
    {TokenMetric::value, "value", MetricKind::score, MetricUnit::squared_output},
    {TokenMetric::key, "key", MetricKind::score, MetricUnit::squared_output},
    {TokenMetric::joint, "joint", MetricKind::score, MetricUnit::squared_output},
    {TokenMetric::caote, "caote", MetricKind::score, MetricUnit::output},
    {TokenMetric::fastcaote, "fastcaote", MetricKind::score, MetricUnit::output},
    {TokenMetric::knorm, "knorm", MetricKind::score, MetricUnit::other},
    {TokenMetric::keydiff, "keydiff", MetricKind::score, MetricUnit::other},
    {TokenMetric::expected_attention, "expected_attention", MetricKind::score, MetricUnit::other},
    {TokenMetric::exact_value, "exact_value", MetricKind::exact, MetricUnit::squared_output},
    {TokenMetric::exact_key, "exact_key", MetricKind::exact, MetricUnit::squared_output},
    {TokenMetric::exact_joint, "exact_joint", MetricKind::exact, MetricUnit::squared_output},
    {TokenMetric::exact_remove, "exact_remove", MetricKind::exact, MetricUnit::squared_output},
    {TokenMetric::oracle_next, "oracle_next", MetricKind::oracle, MetricUnit::squared_output},
    {TokenMetric::oracle_future, "oracle_future", MetricKind::oracle, MetricUnit::squared_output},
    {TokenMetric::oracle_importance, "oracle_importance", MetricKind::oracle, MetricUnit::output},
}};

static_assert([] {
  for (std::size_t m = 0; m < kTokenMetrics; ++m) {
    if (static_cast<std::size_t>(kMetricFacts[m].metric) != m) return false;
  }
  return true;
}());

const MetricFacts& facts(TokenMetric metric) { return kMetricFacts[static_cast<std::size_t>(metric)]; }

std::optional<std::string> why_no_expected_attention(const Dump& dump) {
  const DumpShape& shape = dump.shape();
  if (shape.l <= 4) return "it needs a prompt of more than 4 tokens";
  if (shape.first_query() > 0) {
    return "it needs the queries of the whole prompt, and the dump's start at position " +
           std::to_string(shape.first_query());
  }
  for (Index layer = 0; layer < shape.layers; ++layer) {
    if (!dump.rope(layer)) return "it needs the rotary embedding: " + dump.rope_note();
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(TokenMetric metric) { return facts(metric).name; }
MetricKind kind_of(TokenMetric metric) { return facts(metric).kind; }
MetricUnit unit_of(TokenMetric metric) { return facts(metric).unit; }

std::optional<TokenMetric> token_metric_named(std::string_view name) {
  for (const MetricFacts& fact : kMetricFacts) {
    if (fact.name == name) return fact.metric;
  }
  return std::nullopt;
}

const std::array<TokenMetric, kTokenMetrics>& all_token_metrics() {
  static constexpr auto all = [] {
    std::array<TokenMetric, kTokenMetrics> metrics{};
    for (std::size_t m = 0; m < kTokenMetrics; ++m) metrics[m] = kMetricFacts[m].metric;
    return metrics;
  }();
  return all;
}

Rows window_rows(Index l, Index first_query, Index w) {
  return {std::clamp(std::max(l - w, first_query), Index{0}, l), l};
}

Rows future_rows(Index l, Index T, Index first_query) { return {std::clamp(first_query, l, T), T}; }

std::optional<std::string> why_unavailable(TokenMetric metric, const Dump& dump) {
  const DumpShape& shape = dump.shape();
  if (metric == TokenMetric::knorm || metric == TokenMetric::keydiff) return std::nullopt;
  if (metric == TokenMetric::expected_attention) return why_no_expected_attention(dump);
  if (kind_of(metric) == MetricKind::oracle) {
    if (shape.l >= shape.T) return "it needs decoding steps, and the dump has none";
    if (metric == TokenMetric::oracle_next && shape.first_query() > shape.l) {
      return "it needs the query of the first decoding step, position " + std::to_string(shape.l) +
             ", and the dump's queries start at position " + std::to_string(shape.first_query());
    }
    return std::nullopt;
  }
  if (shape.first_query() >= shape.l) {
    return "the dump holds no query of the prompt (its queries start at position " +
           std::to_string(shape.first_query()) + ", the prompt ends at " + std::to_string(shape.l) + ")";
  }
  return std::nullopt;
}

}  // namespace kvreplay
