#include "sim/tokens/token_metrics.hpp"

#include "sim/gradient_rows.hpp"
#include "sim/tokens/leverage.hpp"
#include "sim/tokens/prompt_scores.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

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

std::optional<std::string> why_unavailable(TokenMetric metric, const Dump& dump) {
  const DumpShape& shape = dump.shape();
  const MetricRows rows = kTokenMetrics[metric].rows;
  if (kTokenMetrics[metric].of_gradients)
    return rows == MetricRows::window
               ? why_no_loss(dump, Tensor::g_window, window_rows(shape.l, shape.first_query(), shape.l))
               : why_no_loss(dump, Tensor::g_future, future_rows(shape.l, shape.T, shape.first_query()));
  switch (rows) {
    case MetricRows::none:
      return std::nullopt;
    case MetricRows::prompt:
      return metric == TokenMetric::leverage ? why_no_leverage(dump) : why_no_expected_attention(dump);
    case MetricRows::asked:
    case MetricRows::window:
      if (shape.first_query() < shape.l) return std::nullopt;
      return "the dump holds no query of the prompt (its queries start at position " +
             std::to_string(shape.first_query()) + ", the prompt ends at " + std::to_string(shape.l) + ")";
    case MetricRows::next:
    case MetricRows::future:
      if (shape.l >= shape.T) return "it needs decoding steps, and the dump has none";
      if (rows == MetricRows::future || shape.first_query() <= shape.l) return std::nullopt;
      return "it needs the query of the first decoding step, position " + std::to_string(shape.l) +
             ", and the dump's queries start at position " + std::to_string(shape.first_query());
    case MetricRows::repeat:
      return metric == TokenMetric::kvzip_plus ? why_no_kvzip_plus(dump) : why_no_second_reading(dump);
  }
  return std::nullopt;
}

MetricSet metrics_of(const Dump& dump) {
  MetricSet metrics = MetricSet::standard();
  for (const TokenMetric m : kTokenMetrics.all())
    if (why_unavailable(m, dump)) metrics.erase(m);
  return metrics;
}

Index first_row_of(TokenMetric metric, const DumpShape& shape, Index w) {
  switch (kTokenMetrics[metric].rows) {
    case MetricRows::none:
    case MetricRows::repeat:
      break;
    case MetricRows::prompt:
    case MetricRows::asked:
      return shape.first_query();
    case MetricRows::window:
      return window_rows(shape.l, shape.first_query(), w).begin;
    case MetricRows::next:
    case MetricRows::future:
      return future_rows(shape.l, shape.T, shape.first_query()).begin;
  }
  return shape.T;
}

HeadParts parts_of(TokenMetric metric, const DumpShape& shape, Index w) {
  const TokenMetricFacts& facts = kTokenMetrics[metric];
  const bool of_keys = facts.rows == MetricRows::none, of_window = facts.rows == MetricRows::window;
  // Norms are finite where keys are, and so are the logits of the only row that row_weights() looks at.
  const bool one_row = of_window && !facts.of_values && !facts.on_host &&
                       window_rows(shape.l, shape.first_query(), w).count() == 1;
  return {.first_row = first_row_of(metric, shape, w),
          .values = facts.of_values,
          .others = facts.of_gradients || !(of_keys || of_window),
          .checked_keys = !(of_keys && !facts.on_host) && !one_row};
}

}  // namespace kvreplay
