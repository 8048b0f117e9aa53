#pragma once

#include "sim/head_group.hpp"

#include <cmath>
#include <vector>

namespace kvreplay {

/// The share of the off-diagonal interaction, the sum of |H_ce|, that lies between the two channels of a
/// rotation pair; 0 where H is 0 there. `partner` [d]: rope_partners().
inline double rope_pair_share(const Matrix<double>& H, const std::vector<Index>& partner) {
  double all = 0, pairs = 0;
  for (Index c = 0; c < H.rows(); ++c)
    for (Index e = 0; e < H.cols(); ++e) {
      if (c == e) continue;
      all += std::abs(H(c, e));
      if (partner[c] == e) pairs += std::abs(H(c, e));
    }
  return all > 0 ? pairs / all : 0;
}

}  // namespace kvreplay
