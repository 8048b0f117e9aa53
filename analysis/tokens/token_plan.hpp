#pragma once

#include "analysis/options/option_text.hpp"
#include "analysis/run/left_out.hpp"
#include "analysis/tokens/token_options.hpp"
#include "data/dump.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <vector>

namespace kvreplay {

/// The metrics that a user asks for, as far as a dump can give them.
struct TokenPlan {
  TokenOptions options;              ///< with the first window
  std::vector<Index> windows;        ///< rows that score: clipped to those that the dump holds, each once
  std::vector<Positions> asked;      ///< what each of `windows` was asked for
  std::vector<TokenMetric> metrics;  ///< those of `options`, in the order in which they are exported
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;
};

/// Throws OptionError for a metric that was asked for by name and that the dump cannot give, and for none.
TokenPlan token_plan(const Dump& dump, const TokenStageOptions& options);

}  // namespace kvreplay
