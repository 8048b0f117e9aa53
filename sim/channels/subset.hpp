#pragma once

#include "sim/kept_set.hpp"

#include <vector>

// Choice of the channels to prune, as pure maths. Given a symmetric, positive semidefinite matrix H [d, d],
// find a set S of n channels with a small error E(S) = sum over c, e in S of H_ce. The code here does not
// depend on the origin of H (channel_interaction.hpp, output_interaction.hpp).

namespace kvreplay {

/// E(S): sum over c, e in S of H_ce, both triangles and the diagonal.
double subset_error(const Matrix<double>& H, const ChannelSet& set);

/// All unprotected channels by ascending score, lower channels first among equals: [d less the protected].
/// `fixed` [d], or empty for none, holds the channels that must not be taken.
std::vector<Index> ascending_order(const Vector<double>& score, const ChannelSet& fixed);

/// The greedy minimum-weight subgraph ([IAP] alg. 1): takes the cheapest channel j, then adds 2 H_cj to the
/// cost of every channel c left; costs start as the diagonal. Every prefix is a set; ties take the lower
/// channel. O(d^2).
std::vector<Index> greedy_order(const Matrix<double>& H, const ChannelSet& fixed);

/// The greedy order of units of several channels each, which are taken whole (rotation pairs): the cheapest
/// unit per channel first, then the cross terms of both triangles are added to the others. `units` are
/// disjoint; those with a channel in `fixed` are left out. Channels of a unit follow each other in the order
/// given.
std::vector<Index> greedy_order(const Matrix<double>& H, const std::vector<std::vector<Index>>& units,
                                const ChannelSet& fixed);

/// From `set`, swaps a member with a channel that is neither in it nor in `fixed`, each time the pair that
/// lowers E(S) the most (ties: the lower member, then the lower channel), until no swap lowers it by more
/// than rounding. Never worse than its start. O(d^2) a swap.
ChannelSet exchange_channels(const Matrix<double>& H, ChannelSet set, const ChannelSet& fixed);

/// The first n channels of an order as a set of d channels; all of them where the order is shorter.
ChannelSet first_of(const std::vector<Index>& order, Index n, Index d);

}  // namespace kvreplay
