#pragma once

#include "sim/head_group.hpp"

#include <cmath>
#include <random>

namespace kvreplay::bench {

/// Normal queries (of deviation 2), keys and values over `positions`, `l` of them the prompt.
template <class T>
HeadGroup<T> random_group(Index positions, Index l, Index d, Index G) {
  std::mt19937 engine(1);
  std::normal_distribution<T> normal;
  const auto fill = [&](HeadMatrix<T>& m, T scale) {
    m.resize(positions, d);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = scale * normal(engine);
  };
  HeadGroup<T> group;
  group.l = l;
  group.rule.scale = 1 / std::sqrt(static_cast<double>(d));
  group.q.resize(G);
  for (HeadMatrix<T>& q : group.q) fill(q, T{2});
  fill(group.k, T{1});
  fill(group.v, T{1});
  return group;
}

}  // namespace kvreplay::bench
