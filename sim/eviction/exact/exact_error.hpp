#pragma once

#include "sim/eviction/exact/coarse_changes.hpp"
#include "sim/eviction/exact/exact_error_problem.hpp"
#include "sim/eviction/exact/exact_error_space.hpp"
#include "sim/schedule.hpp"

#include <optional>
#include <vector>

// The exact error E(M) of a kept set (see greedy.hpp) and of every set that is one token away from it, kept
// up to date while tokens leave and enter.
//
// With D = o^M - o and a the weight of token p within M, removing p changes a row's error by
//   c (2 D . (o^M - v_p) + c ||o^M - v_p||^2),  c = a / (1 - a);
// inserting it does the same with c = -a' / (1 + a'), a' its weight relative to the sum over M. Both need
// o^M . v_p and D . v_p, which follow from one running sum a row and column, u_ip:
//   by what was removed   u = P . v_p, P = sum over the removed of a_ip v_p (a of the whole prompt), with rho
//                         their sum: D = s (rho o - P), o^M = s (o - P), s = 1 / (1 - rho). Nothing cancels
//                         however little was removed.
//   by what is left       u = -X . v_p, X the sum over M: o^M = s X, D = o^M - o. For rows that lost nearly
//                         all their weight, where o - P would cancel.
// As in sim/tokens/tiles.hpp, a row's largest kept candidate (its top) stays out of the rest sums, from which
// its own removal is scored: its 1 - a is a sum, never a difference. Values are centred.
//
// By loss E is 1/2 mean_s (g_is . D)^2 in place of ||D||^2: the same of other vectors (ErrorSpace). What
// changes is that v_p has another product with a token in each row.

namespace kvreplay {

/// A token of M and the E that its removal leaves.
struct BestRemoval {
  Index position;
  double error;
};
/// What E gains when the token at `position`, evicted so far, enters M.
struct Insertion {
  Index position;
  double change;
};

class ExactError {
 public:
  /// Where `insertions` is false nothing that was removed can come back, and best_removal() is all that is
  /// asked for: where E is an error, a pass in float32 then finds the columns that it looks at. `gradients`:
  /// of all rows where E is a loss, null where it is an error.
  ExactError(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept, bool insertions,
             Workers& workers, const RowGradients<double>* gradients = nullptr);

  double error() const { return error_; }       ///< E(M)
  Index kept() const { return problem_.kept; }  ///< |M|

  /// Columns 0..kept()-1 are those of M, the others follow; every move reorders them.
  Index position(Index column) const { return problem_.position[column]; }
  /// What E gains when the column's token is removed from M, or inserted into it; lost by best_removal_with.
  double change(Index column) const { return change_[column]; }
  /// Every token that is not in M; lost as change() is.
  std::vector<Insertion> insertions() const;
  /// The token of M whose removal leaves the smallest E. Ties, to rounding: the higher position.
  BestRemoval best_removal();
  /// The same after `p` has been inserted, without inserting it; p itself stays.
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

}  // namespace kvreplay
