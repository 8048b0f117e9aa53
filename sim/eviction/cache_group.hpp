#pragma once

#include "sim/head_group.hpp"

#include <vector>

namespace kvreplay {

/// A cache as a head group of its own, so that everything that ranks a prompt ranks a cache: the keys and
/// values at `tokens` (positions, ascending), all of them candidates, and the queries at the last `queries`
/// of them, which must be adjacent positions. wo and rope are left out.
template <class T>
HeadGroup<T> cache_group(const HeadGroup<T>& group, const std::vector<Index>& tokens, Index queries);

/// One query head of a group with the group's keys and values: what a cache that is repeated for every query
/// head holds for it.
template <class T>
HeadGroup<T> query_head_group(const HeadGroup<T>& group, Index g);

}  // namespace kvreplay
