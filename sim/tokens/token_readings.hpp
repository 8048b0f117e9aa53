#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/loss_totals.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <set>
#include <span>
#include <vector>

// Token metrics on any hardware: quantities of a head group, and metrics computed from them.

namespace kvreplay {

/// Candidate with the most attention, and the attention that all other candidates get.
struct Others {
  Index top = 0;
  double attn = 0;
};
/// attn: sums or maxima over the rows, [l].
Others others_of(const Vector<double>& attn);

/// Largest weight that a query of the second reading gives each prompt token, [G, l]; 0 for a token that no
/// query sees. The softmax is over the prompt and the sink column (KVzip, arXiv 2505.23416, but without the
/// repeated keys, which share its softmax there). `norms`: G of [R_ref, 1], or empty; a row's weights are
/// divided by its norm, and a row of norm 0 is left out. Products in T; a weight is kept as its logarithm
/// until the end, so that none vanishes. Cost 2 G R l d flops and G R l exponentials; holds l + d panels of
/// rows a thread. The same bytes for any number of threads. Throws InputError where a number overflows T.
template <class T>
Matrix<double> largest_repeat_attention(const HeadGroup<T>& group, const std::vector<HeadMatrix<T>>& norms,
                                        Workers& workers);

/// CAOTE and FastCAOTE of one query head, [l] each; 0 where its rows attend to nothing.
struct CaoteScores {
  Vector<double> caote, fastcaote;
};
/// CAOTE of each query head, from its totals' attn: [G]. Distances in T, the means in float64; the heads
/// share a reading of the values for each.
template <class T>
std::vector<CaoteScores> caote_scores(const PreparedValues<T>& values,
                                      const std::vector<ColumnTotals>& totals, Workers& workers);

/// Reference for one query head, from attn [n] and values [n, d_v]: recomputes the sum over all other tokens
/// for each token.
CaoteScores caote_reference(Vector<double> attn, const HeadMatrix<double>& values);
/// Scores of one query head, if the caller reads the values: weights() for a sum over them, then the
/// distances from mean(). The top token, which may hold nearly all of the attention, is scored from the
/// others alone. Values are less their centre.
class CaoteHead {
 public:
  /// Refers to attn [l] until it is gone.
  explicit CaoteHead(const Vector<double>& attn);

  Index top() const { return others_.top; }
  /// Weights of n tokens from `first` on in the others' mean, [n].
  Vector<double> weights(Index first, Index n) const;
  /// weighted_sum [d_v]: of all values with those weights.
  void set_values(const Vector<double>& weighted_sum, Vector<double> top_value, const Vector<double>& centre);
  /// The weighted mean of all values, [d_v].
  const Vector<double>& mean() const { return mean_; }
  /// Scores n tokens from `first` on; squares [n]: ||mean() - v||^2, fast_squares [n]: the same of the
  /// candidates' mean.
  template <class T>
  void score(Index first, Index n, const T* squares, const T* fast_squares, CaoteScores& scores) const;
  /// CAOTE of the top token, after the others.
  void score_top(CaoteScores& scores) const;

 private:
  const Vector<double>& attn_;
  double total_;
  Others others_;
  Vector<double> of_others_;  // [d_v]
  Vector<double> top_value_;  // [d_v]
  Vector<double> mean_;       // [d_v]
};

/// Quantities of a head group that token metrics need, on the CPU; a device overrides all but
/// gated_importance(). Each takes O(l d) or more and is called once, or once for each query head or set of
/// rows.
template <class T>
class TokenReadings {
 public:
  /// Refers to both until it is gone.
  TokenReadings(const HeadGroup<T>& group, Workers& workers) : group_(group), workers_(workers) {}
  TokenReadings(const TokenReadings&) = delete;
  TokenReadings& operator=(const TokenReadings&) = delete;
  virtual ~TokenReadings() = default;

  /// column_totals() for each request: [requests][G].
  virtual std::vector<std::vector<ColumnTotals>> column_totals(std::span<const ColumnRequest> requests);
  /// ||v_p||^2 of the candidates, [l].
  virtual Vector<double> value_squares();
  /// caote_scores() of the window's totals, [G].
  virtual std::vector<CaoteScores> caote(const std::vector<ColumnTotals>& totals);
  /// ||k_p|| of the candidates, [l].
  virtual Vector<double> key_norms();
  /// KeyDiff among all candidates, [l].
  virtual Vector<double> keydiff();
  /// expected_attention_scores() of the metric's form, [G, l].
  virtual Matrix<double> expected_attention();
  /// sim/tokens/row_norms.hpp, [l].
  virtual Vector<double> projected_value_norms(Index g);
  /// sim/tokens/gated_importance.hpp, [G, l].
  virtual Matrix<double> gated_importance(RowRange rows);
  /// largest_repeat_attention() without norms, [G, l].
  virtual Matrix<double> repeat_attention();
  /// kvreplay::loss_totals(), [G].
  virtual std::vector<LossTotals> loss_totals(const RowGradients<T>& gradients, RowRange rows);

 protected:
  const HeadGroup<T>& group_;
  Workers& workers_;

 private:
  const PreparedValues<T>& values();

  std::optional<PreparedValues<T>> values_;
};

/// Intermediate token metrics: those computed so far, and the rows on which float32 loses attention.
struct ReadMetrics {
  TokenMetrics metrics;
  std::set<MetricRows> lost;
};
template <class T>
ReadMetrics read_metrics(TokenReadings<T>& readings, const HeadGroup<T>& group, const TokenOptions& options,
                         Workers& workers);

/// Completes the metrics with those that run on the CPU on any hardware: prompt_score(), and float64 where
/// float32 loses attention. Throws InputError where a number is not finite.
template <class T>
TokenMetrics finished_metrics(ReadMetrics read, const HeadGroup<T>& group, const TokenOptions& options,
                              Workers& workers);

}  // namespace kvreplay
