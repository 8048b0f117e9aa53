#pragma once

#include "analysis/results/agreement.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/questions/head_figures.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvreplay::viewer {

// Gain and loss at every budget if the tokens that a score ranks highest are kept.

/// At one budget k: n tokens, of which a score's k largest are kept (ties: the lower position first).
struct CurvePoint {
  double recall = 0;  ///< share of the reference's k largest among them; NaN for k = 0
  double mass = 0;    ///< share of the reference's sum that they hold; NaN where that sum is not above 0
  double loss = 0;    ///< sum of the reference over what is left out: 0 for k = n. Of oracle_importance: the
                      ///< eviction_loss ([LUK] eq. 6)
};

/// One score against one reference at every budget 0..n. recall and mass are those of agreement() to the bit.
class ScoreCurve {
 public:
  /// Both rankings are over the same candidates. O(n).
  ScoreCurve(const Ranking& score, const Ranking& reference);

  std::size_t n() const { return held_.size() - 1; }
  /// k is brought into 0..n.
  CurvePoint at(Index k) const;
  std::size_t bytes() const { return held_.size() * (2 * sizeof(double) + sizeof(std::int32_t)); }

 private:
  std::vector<std::int32_t> common_;  ///< [n + 1]: tokens in both top-k sets
  std::vector<double> held_, left_;   ///< [n + 1]: sums of the reference over the top k and over the rest
  double total_ = 0;
};

/// Budgets 1..n that lie evenly in log k, ascending, both ends among them, at most `most` (>= 2); all where
/// there are no more. None for n = 0.
std::vector<Index> log_spaced(Index n, std::size_t most);

/// All scores of a head against one reference.
struct ScoreCurves {
  TokenMetric reference = TokenMetric::exact_remove;
  Index n = 0;                 ///< candidates compared
  double total = 0;            ///< sum of the reference
  std::vector<Index> budgets;  ///< where the curves below are drawn
  struct Curve {
    TokenMetric score = TokenMetric::attn;
    ScoreCurve exact;                        ///< at every budget, for a line that is dragged
    std::vector<double> recall, mass, loss;  ///< at `budgets`
  };
  std::vector<Curve> curves;  ///< in canonical order; the reference's own, the best possible, among them

  const Curve* find(TokenMetric score) const;
};
std::size_t bytes_of(const ScoreCurves& curves);

/// The curves of every metric among `scores` that is there, over the first `compared` candidates. The
/// reference must be there. O(n log n) a score.
ScoreCurves score_curves(const TokenMetrics& metrics, const MetricSet& scores, TokenMetric reference,
                         Index compared, std::size_t most_points, Workers& workers);

// Recall of scores on windows of any length, from a single row to the whole prompt.

/// One head's token metrics on several windows.
struct WindowMetrics {
  std::vector<Index> windows;  ///< rows, ascending: powers of two, and all that there are
  /// One each of the windows, [1, l] per metric; of what looks at no window all have the first one's.
  std::vector<TokenMetrics> metrics;
};
inline std::size_t bytes_of(const WindowMetrics& metrics) {
  std::size_t bytes = sizeof(metrics);
  for (const TokenMetrics& one : metrics.metrics) bytes += bytes_of(one);
  return bytes;
}
/// All metrics of `wanted` on every window; of one query head, 0..G-1 of the group, or of the group.
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
