#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/column_totals.hpp"

#include <vector>

namespace kvreplay {

/// The attention that all but the candidate with the most of it get, and that candidate.
struct Others {
  Index top = 0;
  double attn = 0;
};
/// attn: sums or maxima over the rows, [l].
Others others_of(const Vector<double>& attn);

/// CAOTE and FastCAOTE of one query head, [l] each; 0 where its rows attend to nothing.
struct CaoteScores {
  Vector<double> caote, fastcaote;
};
/// Those of each query head, from its totals' attn: [G]. Distances in T, the means in float64; the heads
/// share a reading of the values for each.
template <class T>
std::vector<CaoteScores> caote_scores(const PreparedValues<T>& values,
                                      const std::vector<ColumnTotals>& totals, Workers& workers);

/// One query head's scores, for whoever reads the values: weights() for a sum over them, then the distances
/// from mean(). The top token, which may hold nearly all of the attention, is scored from the others alone.
/// Values are less their centre.
class CaoteHead {
 public:
  /// Refers to attn [l] until it is gone.
  explicit CaoteHead(const Vector<double>& attn);

  Index top() const { return others_.top; }
  /// What n tokens from `first` on weigh in the others' mean, [n].
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

}  // namespace kvreplay
