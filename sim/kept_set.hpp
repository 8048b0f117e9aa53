#pragma once

#include "sim/head_group.hpp"

#include <cstdint>
#include <vector>

namespace kvreplay {

/// Set of the prompt positions that a cache still holds: [l], 1 where kept. Decoded positions are always in
/// the cache.
using KeptSet = std::vector<std::uint8_t>;

/// A set of key channels: [d], 1 where the channel belongs to it.
using ChannelSet = std::vector<std::uint8_t>;

/// Number of kept positions.
Index count(const KeptSet& kept);

/// The `keep` positions of largest score among those from `begin` on; ties keep the lower position. `score`
/// must not hold NaN.
KeptSet largest(const Vector<double>& score, Index keep, Index begin = 0);

/// The order in which a greedy search evicts: the first l - B entries are what a budget of B evicts.
struct GreedyPath {
  std::vector<Index> evicted;  ///< positions, in the order in which they go
  std::vector<double> error;   ///< E after each of them
};

/// The candidates (positions `begin`..l-1) that remain of a prompt of l tokens at a budget of `keep`: [l].
/// Throws std::out_of_range if the path does not reach the budget.
KeptSet kept_by(const GreedyPath& path, Index l, Index keep, Index begin = 0);

/// The kept set [l] of all positions from `begin` on: the cache's content before any eviction.
KeptSet all_from(Index begin, Index l);

/// Extends a kept set of the candidates, which begin at position `begin`, to one of the whole prompt.
KeptSet behind(Index begin, const KeptSet& of_candidates);

/// The kept positions, ascending.
std::vector<Index> positions(const KeptSet& kept);

/// The evicted positions from `begin` on, ascending.
std::vector<Index> evicted_positions(const KeptSet& kept, Index begin = 0);

/// The kept positions but for the last `recent` of them.
KeptSet without_recent(const KeptSet& kept, Index recent);

}  // namespace kvreplay
