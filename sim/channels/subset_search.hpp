#pragma once

#include "sim/channels/convex_bound.hpp"

#include <optional>

// The parts of optimal_subset(), for its tests.

namespace kvreplay {

/// The best set that a search has found.
class Incumbent {
 public:
  /// H [d, d] must outlive it.
  Incumbent(const Matrix<double>& H, ChannelSet fixed, const ChannelSet& first);

  void offer(const ChannelSet& set);
  /// The set that x rounds to: its k largest, and what the problem has taken. Returns it.
  ChannelSet offer_rounded(const SubsetProblem& problem, const Vector<double>& x);
  /// The only set that a closed problem leaves, if there is one.
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

/// C(m, k), or nothing above 2^19 and where k is more than half of more than 20.
std::optional<Index> few_subsets(Index m, Index k);

/// The set of a problem that is not closed with the smallest error, among equals the first in the order of
/// sorted lists: [d]. O(C(m, k)) and less than O(m) for each choice of k - 1.
ChannelSet best_of_all(const SubsetProblem& problem, Index d);

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
/// the determinant on the changes that keep the sum of x, mu falling with the steps' success, until the bound
/// stalls or reaches the best known set. Channels that the bound settles leave the problem; rounded tangent
/// points are offered to `best`. Any symmetric A will do. O(m^3) a step, some ten of them.
ConvexProblem convexified(SubsetProblem problem, Incumbent& best);

struct SearchEnd {
  double bound = 0;  ///< no set of the problem that was not offered is below the lesser of this and limit()
  Index nodes = 0;
};

/// Branch and bound from a convex problem, best bound first, ties to the node that came first.
SearchEnd search_tree(const ConvexProblem& root, Index most_nodes, Incumbent& best);

}  // namespace kvreplay
