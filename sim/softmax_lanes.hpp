#pragma once

#include "sim/head_matrix.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>

// The softmax of one panel of rows, lane by lane, where it is not what takes the time.

namespace kvreplay {

template <class T>
using Lanes = Eigen::Array<T, kPanelWidth<T>, 1>;

/// exp(x) for x of at most about 0, exactly 0 far below: Eigen's, by vectors, never is.
template <class T>
Lanes<T> weights_at(const Lanes<T>& x) {
  constexpr T kLeast = sizeof(T) == 4 ? T{-87} : T{-700};
  // A selection of x.exp() would not be by vectors.
  const Lanes<T> e = x.max(kLeast).exp();
  return (x > kLeast).select(e, Lanes<T>::Zero());
}

/// The sum of lanes_at(p), Lanes<T>, over p in [begin, end), in float64.
template <class T, class LanesAt>
Eigen::Array<double, kPanelWidth<T>, 1> sum_of_lanes(Index begin, Index end, const LanesAt& lanes_at) {
  constexpr Index kBlock = 64;
  Eigen::Array<double, kPanelWidth<T>, 1> sum = Eigen::Array<double, kPanelWidth<T>, 1>::Zero();
  for (Index at = begin; at < end; at += kBlock) {
    Lanes<T> part = Lanes<T>::Zero();
    for (Index p = at; p < std::min(at + kBlock, end); ++p) part += lanes_at(p);
    sum += part.template cast<double>();
  }
  return sum;
}

}  // namespace kvreplay
