#pragma once

#include "sim/head_group.hpp"

namespace kvreplay {

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

}  // namespace kvreplay
