#pragma once

#include "sim/eviction/exact/exact_error_row.hpp"
#include "sim/eviction/exact/exact_error_simd.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <vector>

// Exact error E(M) of a kept set (see greedy.hpp) and of every set that differs by one token, kept up to date
// while tokens leave and enter.
//
// With D = o^M - o and a the weight of token p within M, removing p changes a row's error by
//   c (2 D . (o^M - v_p) + c ||o^M - v_p||^2),  c = a / (1 - a);
// inserting it does the same with c = -a' / (1 + a'), a' its weight relative to the sum over M. Both need o^M
// . v_p and D . v_p, which follow from one running sum a row and column, u_ip:
//   by what was removed   u = P . v_p, P = sum over the removed of a_ip v_p (a of the whole prompt), with rho
//                         their sum: D = s (rho o - P), o^M = s (o - P), s = 1 / (1 - rho). Nothing cancels
//                         however little was removed.
//   by what is left       u = -X . v_p, X the sum over M: o^M = s X, D = o^M - o. For rows that lost nearly
//                         all their weight, where o - P would cancel.
// A row's largest kept candidate (its top) stays out of the rest sums, as in sim/tokens/tiles.hpp. Its own
// removal is scored from these sums: its 1 - a is a sum, never a difference. Values are centred.
//
// For the loss, E is 1/2 mean_s (g_is . D)^2 in place of ||D||^2: the same formulas for other vectors
// (ErrorSpace). v_p then has another product with a token in each row.

namespace kvreplay {

/// Numbers that start on a cache line, so that no vector of them lies across two.
template <class T>
struct OnCacheLine {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  OnCacheLine() = default;
  template <class U>
  OnCacheLine(const OnCacheLine<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
  bool operator==(const OnCacheLine&) const { return true; }
};
using Numbers = std::vector<double, OnCacheLine<double>>;

/// Input of every search by the exact error. Vectors are padded to a multiple of kErrorPad.
struct ErrorProblem {
  /// `gradients` of all `rows` weigh the errors; null: errors are not weighed.
  ErrorProblem(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept_set,
               const RowGradients<double>* gradients = nullptr);

  Index candidates, T;
  double scale, softcap;             ///< softcap 0: none
  Index width, key_width, kept = 0;  ///< of values, of keys; |M|
  std::vector<Index> position;       ///< of a column: M, the other candidates, then positions always seen
  std::vector<Index> column;         ///< of a candidate's position
  Numbers keys, values;              ///< [T][..] by column; values less `centre`
  Numbers centre;                    ///< [width], the mean value
  Numbers queries;                   ///< [rows][key_width]
  /// The rows that see a candidate; kept sets make no difference to any other row. So far only the candidates
  /// that each row sees are known.
  std::vector<ErrorRowState> rows;
  std::vector<double> sink;  ///< [rows] sink logit, -inf: none
  Index samples = 0;         ///< S, padded as vectors are
  Numbers gradients;         ///< [rows][S][width], times sqrt(1 / (2 S))
};

/// So many blocks of columns have about so many entries of all rows.
inline Index blocks_of_entries(Index entries, Index rows) {
  return std::max<Index>(entries / (kErrorBlock * std::max<Index>(rows, 1)), 1);
}

/// Runs body(first block, number of blocks) over the blocks of `columns` columns, `at_once` to a work item.
template <class Body>
void for_column_blocks(Index columns, Index at_once, Workers& workers, const Body& body) {
  const Index blocks = div_up(columns, kErrorBlock);
  workers.parallel_for(div_up(blocks, at_once), [&](Index item) {
    const Index begin = item * at_once;
    body(begin, std::min(at_once, blocks - begin));
  });
}

/// Space of the vectors whose squared norms add up to E. Without gradients, the vectors are the values and
/// outputs themselves, equal for all rows. With gradients, row r sees of a vector its dot products with the
/// row's S gradients, divided by sqrt(2 S). All computations that are linear in the values happen in this
/// space.
class ErrorSpace {
 public:
  explicit ErrorSpace(const ErrorProblem& problem)
      : of_row_(problem.samples > 0),
        width_(of_row_ ? problem.samples : problem.width),
        value_width_(problem.width),
        gradients_(problem.gradients.data()) {}

  /// True if each row sees a vector differently (with gradients).
  bool of_row() const { return of_row_; }
  Index width() const { return width_; }  ///< length of a vector that a row sees
  /// Distance from one row's copy of a vector to the next row's; 0 if all rows share one copy.
  Index step() const { return of_row_ ? width_ : 0; }

  /// Maps a value, or a sum of values, to the vector that row r sees: seen [width()].
  void see(Index r, const double* v, double* seen) const {
    if (of_row_)
      row_dots(gradients_ + r * width_ * value_width_, width_, value_width_, v, seen);
    else
      std::copy(v, v + width_, seen);
  }
  /// Adjoint of see(): `lifted` is the vector x with x . v = seen . see(r, v) for every value v.
  void lift(Index r, const double* seen, double* lifted) const {
    if (!of_row_) return void(std::copy(seen, seen + width_, lifted));
    std::fill(lifted, lifted + value_width_, 0.0);
    value_rows_simd<double>().add_weighted_rows(gradients_ + r * width_ * value_width_, seen, width_,
                                                value_width_, lifted);
  }

 private:
  bool of_row_;
  Index width_, value_width_;
  const double* gradients_;
};

/// Change of E by every removal, in float32 with a bound on the error. float64 then evaluates only the few
/// columns that may be the best. For errors, not for losses, and only while tokens leave.
///
/// A column's change is the sum over the rows of c (L + c Q), c = a / (1 - a), L = 2 D . (o - v_p), Q =
/// ||o - v_p||^2, o being o^M. A pass over all numbers finds it; until the next pass it is followed to first
/// order. When x leaves, a row's o moves by t (o - x), t = a_x / (1 - a_x), D as much, and c grows by t c (1
/// + c), so that with k = c + c^2 the change of p moves by
///
///   sum of k (d(2 D . o) + 2 t x . v_p) + t k (L + 2 c Q - 2 o . v_p),
///
/// with c, L, Q and o of the pass: two numbers of each row and column, k and k (L + 2 c Q - 2 o . v_p). The
/// remainder is of second order. With e the growth of c's factor since the pass, delta = o - o of the pass, q
/// = ||o|| + max ||v|| and c <= 1/16, the remainder is within the sum of k times
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

  /// True if a pass is due: too many moves, or too large ones.
  bool due() const { return moves() >= kMoves || !(largest_growth_ <= kMostGrowth); }
  Index moves() const { return std::ssize(moved_) / width_; }
  /// Records that the value x is about to leave: from now on, add x . v_p is missing from the float64 sums of
  /// a row. x's weight in the row was add * weight.
  void add_move(const Numbers& x, const std::vector<ErrorRow>& scan);
  /// No move is missing from the row's float64 sums.
  void clear_row(Index row);
  /// Adds the missing moves to n blocks of float64 sums of columns whose `values` are [columns][width].
  void add_moves_to(double* blocks, Index n, const double* values, Index columns) const;

  /// The pass over the first `columns` columns, from whose float64 sums nothing is missing any more. current:
  /// o of all rows.
  void pass(const Numbers& blocks, const std::vector<ErrorRow>& scan, const std::vector<OutputTerms>& terms,
            const Numbers& current, const std::vector<ErrorRowState>& rows, Index columns, Workers& workers);
  /// Follows the last move, to the o and D of all rows.
  void follow(const std::vector<OutputTerms>& terms, const Numbers& current, const Numbers& change,
              Index columns, Workers& workers);
  /// The columns whose removal may leave the smallest E; E is `error` now. All of them where float32
  /// cannot tell.
  std::vector<Index> nearest(double error, const std::vector<OutputTerms>& terms,
                             const std::vector<ErrorRowState>& rows, const std::vector<Index>& column_of,
                             Index columns);

 private:
  static constexpr Index kMoves = 48;
  static constexpr double kMostGrowth = 1.0 / 8;
  using Floats = std::vector<float, OnCacheLine<float>>;

  /// State of a row at the pass, and its changes since then.
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

/// A token of M and the E that its removal leaves.
struct BestRemoval {
  Index position;
  double error;
};
/// Increase of E when the token at `position`, evicted so far, enters M.
struct Insertion {
  Index position;
  double change;
};

class ExactError {
 public:
  /// Without `insertions`, tokens that were removed cannot come back, and only best_removal() is used. Where
  /// E is an error, a pass in float32 then selects the columns that it evaluates. `gradients`: of all rows
  /// where E is a loss, null where it is an error.
  ExactError(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept, bool insertions,
             Workers& workers, const RowGradients<double>* gradients = nullptr);

  double error() const { return error_; }       ///< E(M)
  Index kept() const { return problem_.kept; }  ///< |M|

  /// Columns 0..kept()-1 are those of M, the others follow; every move reorders them.
  Index position(Index column) const { return problem_.position[column]; }
  /// Increase of E when the column's token is removed from M, or inserted into it. best_removal_with()
  /// invalidates it.
  double change(Index column) const { return change_[column]; }
  /// Insertions of all tokens that are not in M. best_removal_with() invalidates them.
  std::vector<Insertion> insertions() const;
  /// The token of M whose removal leaves the smallest E. Ties, to rounding: the higher position.
  BestRemoval best_removal();
  /// The best removal once `p` were inserted, without inserting it; p itself stays.
  BestRemoval best_removal_with(Index p);

  void remove(Index p);
  void insert(Index p);
  /// Sums every row anew: moves leave rounding behind.
  void sum_again();

 private:
  /// Rows times columns of a work item, and where each row has its own products with the columns.
  static constexpr Index kEntriesPerItem = Index{1} << 16, kEntriesOfRows = Index{1} << 13;

  /// Where a row's numbers lie, for exact_error_row.hpp.
  struct Place {
    ExactError& all;
    Index row;

    Index column_of(Index p) const { return all.problem_.column[p]; }
    Index position_of(Index column) const { return all.position(column); }
    double logit_of(Index column) const;
    void set_weight(Index column, double w) const { all.entry(row, column, kWeight) = w; }
    void add_to_rest(double w, Index column) const;
    ErrorColumn largest_kept() const;
  };

  Index rows() const { return n_rows_; }
  const double* query(Index r) const { return problem_.queries.data() + r * problem_.key_width; }
  double* vector_of(Numbers& vectors, Index r) { return vectors.data() + r * width_; }
  double* value(Index column) { return problem_.values.data() + column * problem_.width; }
  double* fixed(Index r) { return fixed_.data() + r * problem_.width; }
  const double* centre(Index r) const { return centre_.data() + r * space_.step(); }
  double& value_sq(Index r, Index column) {
    if (!space_.of_row()) return value_sq_[column];
    return value_sq_[(column / kErrorBlock * rows() + r) * kErrorBlock + column % kErrorBlock];
  }
  double& entry(Index r, Index column, ErrorEntry which) {
    const Index block = column / kErrorBlock * rows() + r;
    return blocks_[(block * kErrorEntries + which) * kErrorBlock + column % kErrorBlock];
  }
  double logit(double dot) const { return exact_error::logit(dot, problem_.scale, problem_.softcap); }
  void logits(const ErrorRowState& row, Index r, Index columns, double* z) const;
  void see_value(Index column);
  const double* seen_value(Index r, Index column);
  void dots_with_values(Index r, const double* seen, double* dots);
  void start_row(Index r);
  void sum_row(Index r);
  void exchange_columns(Index a, Index b);
  void set_terms(Index r, double joining, double joining_rest);
  void dots_with_queries(Index column);
  template <class RowMove>
  void move(Index column, RowMove row_move);
  void update(Index column, const std::vector<Index>& lost);
  OutputVectors vectors() {
    return {out_.data(), rest_.data(), removed_.data(), current_.data(), moved_.data()};
  }
  void dots_with_moved(Index block, double* dots);
  double set_outputs();
  void add_top_errors();
  double score(Index columns, bool store);
  double precise_change(Index column);
  void look_at(const std::vector<Index>& columns);
  void pass_in_float32();
  std::vector<Index> kept_columns() const;
  BestRemoval best_of(double error, const std::vector<Index>& among);

  Workers& workers_;
  const bool insertions_;
  ErrorProblem problem_;  ///< columns in their order of now
  const ErrorSpace space_;
  const Index l_, width_, n_rows_;  // width_: of what a row sees
  double error_ = 0;
  std::vector<ErrorRowState>& rows_;
  Numbers value_sq_;  // by column; where rows see for themselves [column blocks][rows][kErrorBlock]
  Numbers out_, rest_, removed_;  // [rows][width]: o, rest and removed sums
  Numbers fixed_;                 // [rows][d_v]: mean of what cannot be evicted
  Numbers current_, moved_;       // [rows][width]: o^M and D
  Numbers centre_, x_;            // [width], or [rows][width]: the mean value, and the value that moves
  Numbers x_lifted_, tops_;  // where rows see for themselves: [rows][d_v], and [rows][width] of their tops
  std::vector<Index> top_seen_;  // whose value tops_ has
  Numbers blocks_, change_, extent_, dots_, squares_, zeros_;
  std::vector<OutputTerms> terms_;
  std::vector<ErrorRow> scan_;
  std::optional<CoarseChanges> coarse_;
  struct {
    Numbers entries, values, value_sq, zeros, change, extent;
  } looked_at_;  // copies of columns
};

inline void check_stop(const Workers& workers) {
  if (workers.stopping()) throw Interrupted{};
}

/// exchange() of sim/eviction/exact/greedy.hpp from the set `kept` of `state`. State: ExactError or its
/// counterpart on a device.
template <class State>
KeptSet exchange_from(State& state, KeptSet kept, const Workers& workers) {
  constexpr double kWorthwhile = 1e-9;  // swaps that pay less than this part of the error: rounding decides
  constexpr int kSwapsPerSum = 128;     // between two sums of everything anew
  int swaps = 0;
  for (bool improved = true; improved;) {
    improved = false;
    if (swaps > 0) state.sum_again();
    // The one whose return takes away the most error first.
    std::vector<Insertion> evicted = state.insertions();
    std::sort(evicted.begin(), evicted.end(), [](const Insertion& a, const Insertion& b) {
      if (a.change != b.change) return a.change < b.change;
      return a.position < b.position;
    });
    for (const Insertion& in : evicted) {
      check_stop(workers);
      const double error = state.error(), paying = error - kWorthwhile * error;
      const BestRemoval drop = state.best_removal_with(in.position);
      if (!(drop.error < paying)) continue;
      state.insert(in.position);
      state.remove(drop.position);
      if (!(state.error() < paying)) {  // the promise was rounding
        state.insert(drop.position);
        state.remove(in.position);
        continue;
      }
      kept[in.position] = 1;
      kept[drop.position] = 0;
      improved = true;
      if (++swaps % kSwapsPerSum == 0) state.sum_again();
    }
  }
  return kept;
}

}  // namespace kvreplay
