#pragma once

#include "sim/channels/convex_shift.hpp"

#include <optional>

// The parts of optimal_subset(), for its tests.

namespace kvreplay {

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

struct SearchEnd {
  double bound = 0;  ///< no set of the problem that was not offered is below the lesser of this and limit()
  Index nodes = 0;
};

/// Branch and bound from a convex problem, best bound first, ties to the node that came first.
SearchEnd search_tree(const ConvexProblem& root, Index most_nodes, Incumbent& best);

}  // namespace kvreplay
