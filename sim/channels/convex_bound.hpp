#pragma once

#include "sim/channels/subset.hpp"

#include <cstdint>
#include <vector>

// The best set of n channels that swaps and a convex relaxation find, and an error that no set is below.

namespace kvreplay {

struct BoundedSubset {
  ChannelSet set;
  double error = 0;  ///< E(set)
  /// No set of as many channels has a smaller error, to rounding: 1e-11 of the sum of |H| over the set. The
  /// error itself where the bound reaches it, never below 0.
  double lower_bound = 0;
  bool proven = false;  ///< the bound reaches the error: no set is better, to the same rounding
};

/// A set S of n channels outside `fixed` with small E(S), for H symmetric, positive semidefinite and finite.
/// Candidates are the greedy order, `start`, the rounded points of the relaxation, and exchanges from all of
/// these; the best one wins. n is clipped to the channels outside `fixed`; a `start` that is no such set is
/// ignored. O(d^3), some ten times.
BoundedSubset bounded_subset(const Matrix<double>& H, Index n, const ChannelSet& fixed,
                             const ChannelSet& start);

// The parts of bounded_subset(), for its tests.

// Lower bounds for the choice of k of m channels. As x_i^2 = x_i where x is 0 or 1, the error is the same
// function of such x for any u [m]:
//   f(x) = constant + linear' x + x' A x = constant + (linear + u)' x + x' (A - Diag(u)) x.
// Let A - Diag(u) be positive semidefinite on the changes that keep the sum of x. Then the right-hand side is
// convex on {0 <= x <= 1, sum of x = k}, and each of its tangents bounds it from below by the sum of the k
// smallest slopes. The best u is the dual of a semidefinite program (Billionnet, Elloumi: Using a mixed
// integer quadratic programming solver for the unconstrained quadratic 0-1 problem, Math. Prog. 109, 2007).

/// Take k of m channels, `taken` being in the set already.
struct SubsetProblem {
  Matrix<double> A;            ///< [m, m], symmetric
  Vector<double> linear;       ///< [m]
  double constant = 0;         ///< the error of `taken`
  Index k = 0;                 ///< to take
  Vector<double> size;         ///< [m], |A_ce| <= size_c size_e for c and e apart
  std::vector<Index> channel;  ///< [m], which they are
  std::vector<Index> taken;

  Index m() const { return A.rows(); }
  /// One set is left.
  bool closed() const { return k <= 0 || k >= m(); }
};

/// Decision about a channel of a problem.
enum class Choice : std::int8_t { kOpen, kOut, kIn };
using Choices = std::vector<Choice>;

/// Rest of `problem` after some of its channels were decided. O(m^2).
SubsetProblem reduced(const SubsetProblem& problem, const Choices& choices);

/// x with its entries moved to [0, 1] and the first of them moved further until their sum is k.
Vector<double> feasible(Vector<double> x, Index k);

/// f and its slopes at x, and the lower bound that they give for every set: error >= bound.
struct Tangent {
  Vector<double> x, slope;
  double value = 0;
  double bound = 0;      ///< the rounding of its sums taken off
  double last_in = 0;    ///< the k-th smallest slope
  double first_out = 0;  ///< the next
};

/// When a descent is good enough.
struct Until {
  double enough = 0;     ///< bound >= enough
  double precision = 0;  ///< value - bound <= precision
  Index most_steps = 0;
};

/// Descends from a feasible x to a tangent of a convex problem that is not closed: moves weight between two
/// channels at a time. O(m^2), O(m) a step.
Tangent lowest_tangent(const SubsetProblem& convex, Vector<double> x, Until until);

/// Settles the channels whose other choice leads to no set with an error below `limit`. False where there are
/// none. `choices` [m] starts open.
bool settle(const Tangent& tangent, double limit, Choices& choices);

/// The best set that a search has found.
class Incumbent {
 public:
  /// H [d, d] must outlive it.
  Incumbent(const Matrix<double>& H, ChannelSet fixed, const ChannelSet& first);

  void offer(const ChannelSet& set);
  /// Offers the set that x rounds to: its k largest, and the channels that the problem has taken. Returns it.
  ChannelSet offer_rounded(const SubsetProblem& problem, const Vector<double>& x);
  /// Offers the only set that a closed problem leaves, if there is one.
  void offer_closed(const SubsetProblem& problem);
  /// The set itself and what exchanges make of it.
  void offer_exchanged(const ChannelSet& set);

  const ChannelSet& set() const { return set_; }
  double error() const { return error_; }
  /// A set counts as better below this: E less 1e-11 of the sum of |H_ce| over the set.
  double limit() const { return limit_; }

 private:
  const Matrix<double>& H_;
  ChannelSet fixed_, set_;
  double error_ = 0, limit_ = 0;
};

/// Take n of the channels outside `fixed`.
SubsetProblem whole_problem(const Matrix<double>& H, Index n, const ChannelSet& fixed);

/// Each member's part in E(S) is at least its diagonal entry and its n - 1 smallest others: the sum of the n
/// smallest such parts. O(m^2).
double row_bound(const SubsetProblem& problem);

struct ConvexProblem {
  SubsetProblem convex;  ///< the error of each set that can still be better than the best known
  Tangent tangent;
  double bound = 0;  ///< on the problem that was given; holds where `convex` is closed too
};

/// Shifts the diagonal of a problem so that its bound is high: Newton steps on
///   max over u of min over x of f(x) + mu logdet(A - Diag(u)),
/// with the determinant on the changes that keep the sum of x. mu falls as steps succeed. The search ends
/// when the bound stalls or reaches the best known set. Channels that the bound decides leave the problem;
/// rounded tangent points are offered to `best`. A can be any symmetric matrix. O(m^3) a step, some ten of
/// them.
ConvexProblem convexified(SubsetProblem problem, Incumbent& best);

}  // namespace kvreplay
