#pragma once

#include "viewer/work/head_figures.hpp"

#include <optional>

// One query head's own figures, where those of its group are sums (head_figures.hpp).

namespace kvreplay::viewer {

/// Of query head `query_head`, 0..G-1 of the group: the numbers of `kvreplay tokens --per-query-head` with
/// the same window and float32 arithmetic, to the bit.
HeadSummary summarise_query_head(const HeadGroup<float>& group, Index query_head,
                                 const HeadSummaryOptions& options, const Compute& compute);

/// The same of a result folder that was written so; nothing where it holds only sums over groups. Throws
/// InputError where a file is not what it should be.
std::optional<TokenMetrics> read_query_head_metrics(const ResultReader& results, Index layer, Index kv_head,
                                                    Index query_head);

}  // namespace kvreplay::viewer
