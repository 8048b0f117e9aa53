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

namespace {

void choose_metrics(TokenPlan& plan, const Dump& dump, const std::vector<MetricChoice>& choices) {
  if (choices.empty()) throw OptionError(token_option::metrics, "names of metrics, or all", "none");
  const bool all = std::find(choices.begin(), choices.end(), std::nullopt) != choices.end();
  MetricSet& asked = plan.options.metrics;
  asked = {};
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
  plan.settled.metrics.assign(plan.metrics.begin(), plan.metrics.end());
}

void choose_windows(TokenPlan& plan, const DumpShape& shape, const std::vector<Positions>& windows) {
  if (windows.empty()) throw OptionError(token_option::window, "numbers of rows", "none");
  plan.settled.window.clear();
  for (const Positions& window : windows) {
    const Index wanted = window.of(shape.l);
    const Index rows = window_rows(shape.l, shape.first_query(), wanted).count();
    if (std::find(plan.windows.begin(), plan.windows.end(), rows) != plan.windows.end()) continue;
    plan.windows.push_back(rows);
    plan.settled.window.push_back(window);
    if (rows > 0 && rows < wanted)
      plan.notes.push_back(fmt::format(
          "window {} clipped to {}: the dump holds the queries of {} prompt positions", wanted, rows, rows));
  }
  plan.options.window = plan.windows.front();
}

void choose_reserves(TokenPlan& plan, Index l, const std::vector<Index>& reserves) {
  if (reserves.empty()) throw OptionError(token_option::reserve, "whole numbers", "none");
  std::vector<Index>& once = plan.settled.reserve;
  once.clear();
  for (const Index reserve : reserves) {
    if (reserve < 0 || reserve >= l)
      throw OptionError(token_option::reserve, fmt::format("0 to {} of the {} candidates", l - 1, l),
                        fmt::format("{}", reserve));
    if (std::find(once.begin(), once.end(), reserve) == once.end()) once.push_back(reserve);
  }
}

}  // namespace

TokenPlan token_plan(const Dump& dump, const TokenStageOptions& options) {
  TokenPlan plan;
  plan.settled = options;
  choose_metrics(plan, dump, options.metrics);
  choose_windows(plan, dump.shape(), options.window);
  plan.options.per_query_head = options.per_query_head;
  plan.given = read_given<double>(token_option::score, options.scores, dump);
  plan.pairs = token_pairs(plan.options.metrics, names_of(options.scores));
  if (!plan.given.empty() && (plan.pairs.empty() || plan.pairs.back().score.metric))
    throw OptionError(option_text("{} {}: no exact error and no oracle among {} to compare it with",
                                  token_option::score, plan.given.front().name, token_option::metrics));
  choose_reserves(plan, dump.shape().l, options.reserve);
  return plan;
}

}  // namespace kvreplay
