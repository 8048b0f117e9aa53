#include "sim/eviction/cache_group.hpp"

namespace kvreplay {

template <class T>
HeadGroup<T> cache_group(const HeadGroup<T>& group, const std::vector<Index>& tokens, Index queries) {
  HeadGroup<T> cache;
  const Index n = std::ssize(tokens);
  cache.layer = group.layer;
  cache.kv_head = group.kv_head;
  cache.l = n;
  cache.rule = group.rule;
  cache.k.resize(n, group.d());
  cache.v.resize(n, group.d_v());
  for (Index p = 0; p < n; ++p) {
    cache.k.row(p) = group.k.row(tokens[p]);
    cache.v.row(p) = group.v.row(tokens[p]);
  }
  const Index first = queries > 0 ? tokens[n - queries] - group.first_query() : 0;
  for (const Matrix<T>& q : group.q) cache.q.emplace_back(q.middleRows(first, queries));
  if (group.rule.sliding_window) {
    cache.position = tokens;
    if (!group.position.empty())
      for (Index& p : cache.position) p = group.position[p];
  }
  return cache;
}

template <class T>
HeadGroup<T> query_head_group(const HeadGroup<T>& group, Index g) {
  HeadGroup<T> head;
  const auto at = static_cast<std::size_t>(g);
  head.layer = group.layer;
  head.kv_head = group.kv_head;
  head.l = group.l;
  head.rule = group.rule;
  if (!group.rule.sink_logit.empty()) head.rule.sink_logit = {group.rule.sink_logit[at]};
  head.q = {group.q[at]};
  head.k = group.k;
  head.v = group.v;
  if (!group.wo.empty()) head.wo = {group.wo[at]};
  head.rope = group.rope;
  head.position = group.position;
  return head;
}

template HeadGroup<float> cache_group(const HeadGroup<float>&, const std::vector<Index>&, Index);
template HeadGroup<double> cache_group(const HeadGroup<double>&, const std::vector<Index>&, Index);
template HeadGroup<float> query_head_group(const HeadGroup<float>&, Index);
template HeadGroup<double> query_head_group(const HeadGroup<double>&, Index);

}  // namespace kvreplay
