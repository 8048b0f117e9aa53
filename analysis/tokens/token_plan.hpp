#pragma once

#include "analysis/given/given_arrays.hpp"
#include "analysis/options/option.hpp"
#include "analysis/run/stage.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "data/dump.hpp"
#include "sim/positions.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// A token metric; nothing is "all": every one that the dump can give.
using MetricChoice = std::optional<TokenMetric>;

struct TokenStageOptions {
  std::vector<Positions> window = {{32}};  ///< arrays and sums are those of the first
  std::vector<MetricChoice> metrics = {std::nullopt};
  /// Recent candidates that a score's top-k holds whatever it says of them.
  std::vector<Index> reserve = {0};
  bool per_query_head = false;
  std::vector<NamedFile> scores;
};

/// What is said of each of them, and where it is kept; they must outlive it.
BoundOptions bound(TokenStageOptions& options);

namespace token_option {
inline constexpr OptionFacts window{
    "window", "LIST",
    "Rows of scores and errors: the last N prompt queries, 5% of them or all; "
    "of several, arrays and heads.csv are of the first",
    "", 1},
    metrics{"metrics", "LIST", "Token metrics, comma-separated"},
    reserve{"reserve", "LIST",
            "Recall and mass with the last N candidates inside the k that a score finds, whatever it says of "
            "them"},
    per_query_head{"per-query-head", "", "Token arrays for every query head, not summed over its group"},
    score{
        "score", "name=PATH",
        "Your score, .npy [layers, kv_heads, l], compared with every exact error and oracle; {dump} in PATH "
        "is the dump's name, and a folder holds one array a dump, <dump>.npy"};
}  // namespace token_option

template <>
struct OptionValue<TokenMetric> {
  static TokenMetric parse(const OptionFacts& option, const std::string& word);
  static std::string text(TokenMetric metric) { return std::string(name_of(metric)); }
};

template <>
struct OptionValue<MetricChoice> {
  static MetricChoice parse(const OptionFacts& option, const std::string& word);
  static std::string text(const MetricChoice& choice) {
    return choice ? std::string(name_of(*choice)) : "all";
  }
};

/// What a user asks for, as far as a dump can give it.
struct TokenPlan {
  TokenOptions options;              ///< with the first window
  std::vector<Index> windows;        ///< rows that score: clipped to those that the dump holds, each once
  std::vector<TokenMetric> metrics;  ///< those of `options`, in the order in which they are exported
  std::vector<GivenArray<double>> given;
  std::vector<TokenPair> pairs;  ///< with every window and every reserve
  TokenStageOptions settled;     ///< what this comes to, windows as they were asked for and each thing once
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;
};

/// Throws InputError where a metric is named but unavailable or none is, a reserve leaves no candidate, or a
/// score of the user's cannot be read or has nothing to be compared with.
TokenPlan token_plan(const Dump& dump, const TokenStageOptions& options);

}  // namespace kvreplay
