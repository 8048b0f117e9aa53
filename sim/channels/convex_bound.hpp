#pragma once

#include "sim/channels/subset.hpp"

#include <cstdint>
#include <vector>

// Lower bounds for the choice of k of m channels, for optimal_subset(). As x_i^2 = x_i where x is 0 or 1, the
// error is the same function of such x for any u [m]:
//   f(x) = constant + linear' x + x' A x = constant + (linear + u)' x + x' (A - Diag(u)) x.
// Where A - Diag(u) is positive semidefinite on the changes that keep the sum of x, the right-hand side is
// convex on {0 <= x <= 1, sum of x = k}, and each of its tangents bounds it from below by the sum of the k
// smallest slopes. The best u is the dual of a semidefinite program (Billionnet, Elloumi: Using a mixed
// integer quadratic programming solver for the unconstrained quadratic 0-1 problem, Math. Prog. 109, 2007).

namespace kvreplay {

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

/// What is settled about a channel of a problem.
enum class Choice : std::int8_t { kOpen, kOut, kIn };
using Choices = std::vector<Choice>;

/// The problem that is left of `problem` with some of its channels settled. O(m^2).
SubsetProblem reduced(const SubsetProblem& problem, const Choices& choices);

/// x with its entries moved to [0, 1] and the first of them moved further until their sum is k.
Vector<double> feasible(Vector<double> x, Index k);

/// f and its slopes at x, and what they say of every set: error >= bound.
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

}  // namespace kvreplay
