#pragma once

#include "sim/channels/subset.hpp"

namespace kvreplay {

struct OptimalSubset {
  ChannelSet set;
  double error = 0;  ///< E(set)
  double lower_bound =
      0;  ///< no set of as many channels has a smaller error, to rounding; the error itself where proven
  bool proven = false;  ///< the search was exhausted: the set is optimal
  Index nodes = 0;      ///< of the search tree that were looked at
};

/// The n channels outside `fixed` with the smallest E(S), H symmetric positive semidefinite: branch and bound
/// on a convex relaxation, best bound first, from the best of the greedy order, `start` and their exchanges.
/// Where `most_nodes` do not suffice it ends with the best set found and the smallest bound left open. Which
/// nodes are looked at depends on the input alone, never on time. n is clipped to the channels outside
/// `fixed`.
OptimalSubset optimal_subset(const Matrix<double>& H, Index n, const ChannelSet& fixed,
                             const ChannelSet& start, Index most_nodes);

}  // namespace kvreplay
