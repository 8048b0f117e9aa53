#pragma once

#include "sim/channels/subset.hpp"

namespace kvreplay {

struct OptimalSubset {
  ChannelSet set;
  double error = 0;  ///< E(set)
  /// No set of as many channels has a smaller error, to rounding: 1e-11 of the sum of |H| over the set. The
  /// error itself where the set is proven, never below 0.
  double lower_bound = 0;
  bool proven = false;  ///< no set is better, to the same rounding
  Index nodes = 0;      ///< of the search tree that were looked at; 0 where none was needed
};

/// Nodes of the search tree that a head is worth. With 128 channels a call takes 4 to 25 ms on one core, a
/// third of it the root's, and leaves 0 to 6 % unproven where H is random; with 64 it takes 6 ms at most.
inline constexpr Index kMostNodes = 200;

/// The n channels outside `fixed` with the smallest E(S), H symmetric, positive semidefinite and finite.
/// Of 20 channels at most, and where there are at most 2^19 sets of up to half of them (up to 3 of 128), all
/// are tried. Otherwise:
/// branch and bound on a convex relaxation (convex_bound.hpp), best bound first, from the best of the greedy
/// order, `start` and their exchanges; where `most_nodes` do not suffice it ends with the best set found and
/// the smallest bound left open. Which nodes are looked at depends on the input alone, never on time. n is
/// clipped to the channels outside `fixed`; a `start` that is no such set is not used. O(d^3) and O(d^2) a
/// node, of 5 d bytes.
OptimalSubset optimal_subset(const Matrix<double>& H, Index n, const ChannelSet& fixed,
                             const ChannelSet& start, Index most_nodes);

}  // namespace kvreplay
