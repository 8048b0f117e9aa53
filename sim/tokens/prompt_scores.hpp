#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_facts.hpp"

#include <optional>
#include <string>

// Scores of a KV head's tokens that depend on the whole prompt (TokenMetricFacts::on_host), on the host in
// float64 whatever the backend. Definitions: sim/tokens/METRICS.md.

namespace kvreplay {

/// Constants of LagKV and CURPress as kvpress has them, and of DefensiveKV as its authors' code has them.
inline constexpr Index kScoreSinks = 4;  ///< first tokens that LagKV and CUR rank above all
inline constexpr Index kLag = 128;       ///< tokens of a stretch that LagKV ranks by the next one
inline constexpr Index kCurWindow = 16;  ///< tokens among which CUR takes shares
inline constexpr Index kDefensivePool = 5;

/// Reason why a dump's tokens have no kvzip_plus, as one clause; nothing where they have it.
std::optional<std::string> why_no_kvzip_plus(const Dump& dump);

/// Scores of the KV head's tokens, [l]. `window`: number of last rows for metrics of MetricRows::window. The
/// same bytes for any number of threads. Throws InputError where a number overflows.
Vector<double> prompt_score(TokenMetric metric, const HeadGroup<double>& group, Index window,
                            Workers& workers);

/// Reference: row by row and channel by channel, directly from the definitions.
Vector<double> prompt_score_reference(TokenMetric metric, const HeadGroup<double>& group, Index window);

}  // namespace kvreplay
