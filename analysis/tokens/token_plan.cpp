#include "analysis/tokens/token_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

namespace kvreplay {

BoundOptions bound(TokenStageOptions& options) {
  using namespace token_option;
  const auto on_request = [](const TokenMetricFacts& facts) { return facts.on_request; };
  return {bind_option(window, options.window),
          bind_option(metrics, options.metrics)
              .saying(fmt::format(": {}; all: every one that the dump can give but {}",
                                  fmt::join(kTokenMetrics.names(), ", "),
                                  fmt::join(kTokenMetrics.names_where(on_request), ", "))),
          bind_option(reserve, options.reserve), bind_option(per_query_head, options.per_query_head),
          // What a file holds counts, not its name.
          bind_option(score, options.scores).keyed("")};
}

TokenMetric OptionValue<TokenMetric>::parse(const OptionFacts& option, const std::string& word) {
  if (const auto metric = kTokenMetrics.named(word)) return *metric;
  throw OptionError(
      option_text("{}: unknown metric '{}'{}", option, word, alternatives(word, kTokenMetrics.names())));
}

MetricChoice OptionValue<MetricChoice>::parse(const OptionFacts& option, const std::string& word) {
  if (word == "all") return std::nullopt;
  return OptionValue<TokenMetric>::parse(option, word);
}

TokenPlan token_plan(const Dump& dump, const TokenStageOptions& options) {
  const std::vector<MetricChoice>& choices = options.metrics;
  if (choices.empty()) throw OptionError(token_option::metrics, "names of metrics, or all", "none");
  TokenPlan plan;
  const bool all = std::find(choices.begin(), choices.end(), std::nullopt) != choices.end();
  MetricSet asked;
  for (const MetricChoice& choice : choices) {
    if (!choice) continue;
    if (const auto why = why_unavailable(*choice, dump))
      throw OptionError(
          option_text("{}: {} is unavailable: {}", token_option::metrics, name_of(*choice), *why));
    asked.insert(*choice);
  }
  for (const TokenMetric m : kTokenMetrics.all()) {
    if (all && !kTokenMetrics[m].on_request) {
      if (const auto why = why_unavailable(m, dump)) {
        plan.left_out.push_back({std::string(name_of(m)), *why});
        continue;
      }
      asked.insert(m);
    }
    if (asked.contains(m)) plan.metrics.push_back(m);
  }
  if (options.window.empty()) throw OptionError(token_option::window, "numbers of rows", "none");
  const DumpShape& shape = dump.shape();
  for (const Positions& window : options.window) {
    const Index wanted = window.of(shape.l);
    const Index rows = window_rows(shape.l, shape.first_query(), wanted).count();
    if (std::find(plan.windows.begin(), plan.windows.end(), rows) != plan.windows.end()) continue;
    plan.windows.push_back(rows);
    plan.asked.push_back(window);
    if (rows > 0 && rows < wanted)
      plan.notes.push_back(fmt::format(
          "window {} clipped to {}: the dump holds the queries of {} prompt positions", wanted, rows, rows));
  }
  plan.options = {plan.windows.front(), options.per_query_head, asked};
  return plan;
}

}  // namespace kvreplay
