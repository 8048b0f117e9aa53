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

/// The same numbers in another precision.
template <class To, class From>
HeadGroup<To> converted(const HeadGroup<From>& group) {
  HeadGroup<To> result;
  result.layer = group.layer;
  result.kv_head = group.kv_head;
  result.l = group.l;
  result.rule = group.rule;
  for (const Matrix<From>& q : group.q) result.q.push_back(q.template cast<To>());
  result.k = group.k.template cast<To>();
  result.v = group.v.template cast<To>();
  for (const Matrix<From>& wo : group.wo) result.wo.push_back(wo.template cast<To>());
  result.rope = group.rope;
  result.position = group.position;
  return result;
}

extern template HeadGroup<float> cache_group(const HeadGroup<float>&, const std::vector<Index>&, Index);
extern template HeadGroup<double> cache_group(const HeadGroup<double>&, const std::vector<Index>&, Index);
extern template HeadGroup<float> query_head_group(const HeadGroup<float>&, Index);
extern template HeadGroup<double> query_head_group(const HeadGroup<double>&, Index);

}  // namespace kvreplay
