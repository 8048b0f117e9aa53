#pragma once

#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/work/head_figures.hpp"

#include <memory>
#include <optional>
#include <vector>

// What scores find on windows of any length, from a single row to the whole prompt.

namespace kvreplay::viewer {

/// One head's token metrics on several windows.
struct WindowMetrics {
  std::vector<Index> windows;  ///< rows, ascending: powers of two, and all that there are
  /// One each of the windows, [1, l] per metric; of what looks at no window all have the first one's.
  std::vector<TokenMetrics> metrics;
};
std::size_t bytes_of(const WindowMetrics& metrics);
/// Of all metrics of `wanted`; of one query head, 0..G-1 of the group, or of the group.
WindowMetrics window_metrics(const HeadGroup<float>& group, const MetricSet& wanted,
                             std::optional<Index> query_head, const Compute& compute);

/// recall@k of a reference by every score that looks at the window.
struct WindowCurves {
  TokenMetric reference = TokenMetric::oracle_next;
  Index k = 0, reserve = 0;
  std::vector<Index> windows;
  struct Curve {
    TokenMetric score = TokenMetric::attn;
    std::vector<double> recall;  ///< one each of the windows
    std::vector<double>
        reserved;  ///< with the last `reserve` tokens inside the k; empty unless 0 < reserve < k
  };
  std::vector<Curve> curves;  ///< in canonical order
};
std::size_t bytes_of(const WindowCurves& curves);
/// k in 1..l. The reference must be there.
WindowCurves window_curves(const WindowMetrics& metrics, TokenMetric reference, Index k, Index reserve,
                           Workers& workers);

}  // namespace kvreplay::viewer
