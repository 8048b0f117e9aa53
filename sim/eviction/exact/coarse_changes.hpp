#pragma once

#include "sim/eviction/exact/exact_error_problem.hpp"
#include "sim/eviction/exact/exact_error_simd.hpp"
#include "sim/schedule.hpp"

#include <vector>

namespace kvreplay {

/// What every removal changes, in float32 and with a bound of its error, after which float64 looks at the few
/// columns that may be the best. Of errors, not of losses, and while tokens only leave.
///
/// A column's change is the sum over the rows of c (L + c Q), c = a / (1 - a), L = 2 D . (o - v_p), Q =
/// ||o - v_p||^2, o being o^M. A pass over all numbers finds it; until the next pass it is followed to first
/// order. When x leaves, a row's o moves by t (o - x), t = a_x / (1 - a_x), D as much, and c grows by t c (1
/// + c), so that with k = c + c^2 the change of p moves by
///
///   sum of k (d(2 D . o) + 2 t x . v_p) + t k (L + 2 c Q - 2 o . v_p),
///
/// with c, L, Q and o of the pass: two numbers of each row and column, k and k (L + 2 c Q - 2 o . v_p). What
/// is left out is of second order. With e the growth of c's factor since the pass, delta = o - o of the pass,
/// q = ||o|| + max ||v|| and c <= 1/16 it is within the sum of k times
///
///   e' (1.14 (2 q ||delta|| + ||delta||^2) + |d ||D||^2|)    c's growth on moved L and Q, e' = e / (1 - e)
///   + |d ||D||^2| / 16                                       Q moves by c^2, as L does but for this
///   + 2 max ||v|| sum of t ||delta||                         o has moved by the time that t comes
///   + 17/16 e'^2 (|L| + |Q| / 5)                             c's growth is no longer e (1 + c)
///
/// and rounding; columns of larger c take 256 times as much.
///
/// The pass: |L| <= 2 q ||D|| and so on by the norms of what they are products of, c <= 1: a larger weight is
/// its row's top. With eps = 2^-24, c is right to 9 eps, and 16 rows at a time are added up in float32: 48
/// eps times the sum of c (|L| + c |Q|) bounds what rounding does. Values are in a unit of the largest one's
/// norm, and changes 2^80 times as large, so that weights of 1e-31 keep their digits.
class CoarseChanges {
 public:
  /// `out`: o of every row with nothing evicted, [rows][problem.width].
  CoarseChanges(const ErrorProblem& problem, const Numbers& out);

  void exchange(Index a, Index b);

  /// Whether a pass is due: too many moves, or too large ones.
  bool due() const { return moves() >= kMoves || !(largest_growth_ <= kMostGrowth); }
  Index moves() const { return std::ssize(moved_) / width_; }
  /// The value x is about to leave: add x . v_p is missing from the float64 sums of a row from now on, and
  /// its weight among the row's was add * weight.
  void add_move(const Numbers& x, const std::vector<ErrorRow>& scan);
  /// No move is missing from the row's float64 sums.
  void clear_row(Index row);
  /// Adds what is missing to n blocks of float64 sums of columns whose `values` are [columns][width].
  void add_moves_to(double* blocks, Index n, const double* values, Index columns) const;

  /// The pass over the first `columns` columns, from whose float64 sums nothing is missing any more. current:
  /// o of all rows.
  void pass(const Numbers& blocks, const std::vector<ErrorRow>& scan, const std::vector<OutputTerms>& terms,
            const Numbers& current, const std::vector<ErrorRowState>& rows, Index columns, Workers& workers);
  /// Follows the last move, to the o and D of all rows.
  void follow(const std::vector<OutputTerms>& terms, const Numbers& current, const Numbers& change,
              Index columns, Workers& workers);
  /// Those of the columns whose removal may leave the smallest E; E is `error` now. All of them where float32
  /// cannot tell.
  std::vector<Index> nearest(double error, const std::vector<OutputTerms>& terms,
                             const std::vector<ErrorRowState>& rows, const std::vector<Index>& column_of,
                             Index columns);

 private:
  static constexpr Index kMoves = 48;
  static constexpr double kMostGrowth = 1.0 / 8;
  using Floats = std::vector<float, OnCacheLine<float>>;

  /// What a row was at the pass, and has done since.
  struct Row {
    double out_norm;       ///< ||o|| with nothing evicted
    Index top = -1;        ///< position
    double norm = 0;       ///< ||o||
    double change_sq = 0;  ///< ||D||^2
    double followed = 0;   ///< 2 D . o as follow() left it
    double step = 0;       ///< t of the last move
    double growth = 0;     ///< e
    double late = 0;       ///< sum of t ||delta||
    double delta = 0;      ///< ||delta||
    double size = 0;       ///< of all that k was multiplied by, for its rounding
  };

  float& value(Index column, Index k) {
    return values_[(column / kErrorBlock * width_ + k) * kErrorBlock + column % kErrorBlock];
  }
  CoarseRow coarse_row(const Row& row, const ErrorRow& scan, const OutputTerms& terms) const;
  /// Blocks of columns to a work item.
  Index at_once() const { return blocks_of_entries(Index{1} << 17, rows_); }

  const Index rows_, columns_, width_;
  double largest_value_ = 0, unit_ = 1, unit_of_changes_ = 1;
  Floats values_, value_sq_, x_;  // [column blocks][width][kErrorBlock], [columns], [width]
  Floats slopes_;                 // [column blocks][rows][kSlopeEntries][kErrorBlock]
  Floats largest_weight_;         // [columns] c of the pass, of any row
  std::vector<Row> row_;
  std::vector<CoarseRow> scan_;
  std::vector<FollowedRow> followed_;
  Numbers out_, dots_, squares_;  // [rows][width] o of the pass; [rows]
  Numbers moved_, added_;         // [moves][width], [moves][rows]
  double largest_growth_ = 0;
  Numbers change_, extent_, left_out_, with_tops_, doubt_;  // [columns]
  double lost_ = 0;                                         // of a change, below float32's range
};

}  // namespace kvreplay
