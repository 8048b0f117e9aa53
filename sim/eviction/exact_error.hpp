#pragma once

#include "sim/eviction/exact_error_kernels.hpp"
#include "sim/eviction/kept_set.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <new>
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

class ExactError {
 public:
  /// Where `insertions` is false only removals are scored, and what was removed cannot come back.
  ExactError(const HeadGroup<double>& group, Rows rows, const KeptSet& kept, bool insertions,
             Workers& workers);

  double error() const { return error_; }  ///< E(M)
  Index kept() const { return kept_; }     ///< |M|

  /// Columns 0..kept()-1 are those of M, the others follow; every move reorders them.
  Index position(Index column) const { return position_[at(column)]; }
  /// What E gains when the column's token is removed from M, or inserted into it; lost by best_removal_with.
  double change(Index column) const { return change_[at(column)]; }
  /// The token of M whose removal leaves the smallest E, and that E. Ties, to rounding: the higher position.
  struct Removal {
    Index position;
    double error;
  };
  Removal best_removal();
  /// The same after `p` has been inserted, without inserting it; p itself stays.
  Removal best_removal_with(Index p);

  void remove(Index p);
  void insert(Index p);
  /// Sums every row anew: moves leave rounding behind.
  void sum_again();

 private:
  struct Row {
    const double* query;
    Index first, end;        ///< candidates it sees
    double fixed_lse;        ///< log-sum-exp of what cannot be evicted, -inf where there is none
    double all_max, all_by;  ///< weight within the whole prompt: exp(z - all_max) all_by
    double shift, by;        ///< weight as the columns and s have it: exp(z - shift) by
    bool by_removed;         ///< what u sums
    Index top;               ///< position, -1 where no kept candidate is seen
    double z_top;
    double rest_max, rest_sum;  ///< sum over the rest of exp(z - rest_max)
    double rest_most;           ///< the largest rest_sum since it was summed
    double removed;             ///< rho
    double removed_most;        ///< the largest since it was summed
  };

  /// Sums are taken anew when they have shrunk to this: until then they lose at most three digits.
  static constexpr double kShrunk = 1e-3;
  /// Exponents beyond this are cut: the weight of such a column against the others is 1 either way.
  static constexpr double kLargestExponent = 600;
  /// Rows times columns of a work item.
  static constexpr Index kEntriesPerItem = Index{1} << 16;

  /// Candidates for the best removal, alike to rounding, that are compared precisely.
  static constexpr std::size_t kLookedAt = 64;

  static double capped_exp(double x) { return std::exp(std::min(x, kLargestExponent)); }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Index rows() const { return static_cast<Index>(rows_.size()); }
  double* vector_of(Numbers& vectors, Index r) { return vectors.data() + r * width_; }
  double* value(Index column) { return values_.data() + column * width_; }
  double& entry(Index r, Index column, ErrorEntry which) {
    const Index block = column / kErrorBlock * rows() + r;
    return blocks_[at((block * kErrorEntries + which) * kErrorBlock + column % kErrorBlock)];
  }
  bool sees(const Row& row, Index p) const { return p >= row.first && p < row.end; }
  double logit(double dot) const;
  double logit_of(const Row& row, Index column);

  void load(const HeadGroup<double>& group, const KeptSet& kept);
  void add_rows(const HeadGroup<double>& group, Rows rows);
  void start_row(Index r, double sink);
  void sum_row(Index r);
  void exchange_columns(Index a, Index b);
  bool demote_top(Index r);
  bool promote_next(Index r);
  bool remove_from(Index r, Index column, double z);
  bool insert_into(Index r, Index column, double z);
  void set_terms(Index r, double joining, double joining_rest);
  void move(Index column, bool (ExactError::*of_row)(Index, Index, double));
  void update(Index column, const std::vector<Index>& lost);
  OutputVectors vectors() {
    return {out_.data(), rest_.data(), removed_.data(), current_.data(), moved_.data()};
  }
  double score(const double* x, Index columns, bool store);
  double precise_change(Index column);
  Removal best_of(double error);

  Workers& workers_;
  const AttentionRule rule_;
  const bool insertions_;
  const Index l_;
  Index width_, key_width_, kept_ = 0;
  double error_ = 0;
  std::vector<Row> rows_;
  std::vector<Index> position_, column_;  // of a column, of a position
  Numbers keys_, values_, value_sq_;      // by column; then the decoded positions
  Numbers queries_, centre_;
  Numbers out_, rest_, removed_, fixed_;  // [rows][width]: o, rest and removed sums, fixed mean
  Numbers current_, moved_;               // [rows][width]: o^M and D
  Numbers blocks_, change_, extent_, x_dot_, dots_, squares_, zeros_;
  std::vector<OutputTerms> terms_;
  std::vector<ErrorRow> scan_;
};

}  // namespace kvreplay
