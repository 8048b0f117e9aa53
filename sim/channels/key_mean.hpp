#pragma once

#include "sim/head_group.hpp"

#include <algorithm>
#include <vector>

namespace kvreplay {

/// About the mean of the keys at the positions `of`, from a sample of them: [d], 0 where there are none.
template <class T>
Vector<T> sampled_key_mean(const HeadGroup<T>& group, const std::vector<Index>& of) {
  constexpr Index kSampled = 256;
  const Index n = std::ssize(of), step = std::max<Index>((n + kSampled - 1) / kSampled, 1);
  Vector<double> sum = Vector<double>::Zero(group.d());
  for (Index key = 0; key < n; key += step) sum += group.k.row(of[key]).transpose().template cast<double>();
  return (sum / static_cast<double>(std::max<Index>((n + step - 1) / step, 1))).template cast<T>();
}

}  // namespace kvreplay
