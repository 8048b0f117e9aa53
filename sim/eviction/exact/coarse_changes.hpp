#pragma once

#include "sim/eviction/exact/exact_error_problem.hpp"
#include "sim/eviction/exact/exact_error_simd.hpp"
#include "sim/schedule.hpp"

#include <algorithm>
#include <vector>

namespace kvreplay {

/// What every removal changes, in float32 and with a bound of its error: a pass over half the bytes, after
/// which float64 looks at the few columns that may be the best. Of errors, not of losses.
///
/// A column's change is the sum over the rows of c (lin + c sq) (ErrorRow), where |lin| <= K and |sq| <= Q by
/// the norms of what they are products of, and a <= 1/2: a larger weight is its row's top. With eps = 2^-24,
/// running sums are rounded once a move, c is right to 9 eps, and 16 rows at a time are added up in float32:
/// (moves + 48) eps times the sum of c (K + c Q) bounds what rounding does. Values are in a unit of the
/// largest one's norm, and changes 2^80 times as large, so that weights of 1e-31 keep their digits.
class CoarseChanges {
 public:
  /// After so many moves the float64 sums catch up, and those here are taken from them.
  static constexpr Index kMoves = 64;

  /// `out`: o of every row, [rows][problem.width].
  CoarseChanges(const ErrorProblem& problem, const Numbers& out);

  /// A row's numbers from its float64 ones, which no move is missing from.
  void take_row(Index row, const Numbers& blocks);
  void set_weight(Index row, Index column, double weight) {
    entry(row, column, kWeight) = static_cast<float>(std::max(weight, kLeastWeight));
  }
  void exchange(Index a, Index b);

  /// The value x has moved; scan[r].add times it is missing from row r's float64 sums from now on.
  void add_move(const Numbers& x, const std::vector<ErrorRow>& scan);
  Index moves() const { return std::ssize(moved_) / width_; }
  /// Adds what is missing to n blocks of float64 sums of columns whose `values` are [columns][width].
  void add_moves_to(double* blocks, Index n, const double* values, Index columns) const;
  /// Takes the sums of the first `columns` columns, from which no move is missing any more.
  void take_sums(const Numbers& blocks, Index columns);

  /// The pass over the first `columns` columns.
  void scan(const std::vector<ErrorRow>& scan, const std::vector<OutputTerms>& terms, Index columns,
            Workers& workers);
  /// Those of them whose removal may leave the smallest E, after a scan; E is `error` now. `top_column(r)` is
  /// the column of row r's top, -1 for none. All of them where float32 cannot tell.
  template <class TopColumn>
  std::vector<Index> nearest(double error, const std::vector<OutputTerms>& terms, Index columns,
                             const TopColumn& top_column) {
    for (Index r = 0; r < rows_; ++r)
      if (const Index c = top_column(r); c >= 0) change_[c] += unit_of_changes_ * terms[r].top_error;
    return within_bounds(error, columns);
  }

 private:
  /// Evicted columns, which no pass looks at, may have less (kAllWeight).
  static constexpr double kLeastWeight = -1e30;

  float& entry(Index r, Index column, ErrorEntry which) { return entries_[at(r, column, which)]; }
  std::size_t at(Index r, Index column, ErrorEntry which) const {
    return ((column / kErrorBlock * rows_ + r) * kErrorEntries + which) * kErrorBlock + column % kErrorBlock;
  }
  CoarseRow coarse_row(Index r, const ErrorRow& scan, const OutputTerms& terms);
  std::vector<Index> within_bounds(double error, Index columns);

  using Floats = std::vector<float, OnCacheLine<float>>;
  struct Row {
    double out_norm;        ///< ||o||
    double sum_norm = 0;    ///< the largest bound of its running sum's vector since it was taken
    double moved_norm = 0;  ///< sum of ||add x|| since then
  };

  const Index rows_, columns_, width_;
  double largest_value_ = 0, unit_ = 1, unit_of_changes_ = 1;
  Floats entries_, values_, value_sq_, x_;  // as in ExactError; value_sq_ in units of changes
  std::vector<Row> row_;
  std::vector<CoarseRow> scan_;
  Numbers moved_, added_;  // [moves][width], [moves][rows]
  bool moved_since_scan_ = false;
  Numbers change_, doubt_;  // [columns]
  double lost_ = 0;         // of a change, below float32's range
};

}  // namespace kvreplay
