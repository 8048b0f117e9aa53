#include "analysis/tokens/token_options.hpp"

#include <fmt/format.h>

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

}  // namespace kvreplay
