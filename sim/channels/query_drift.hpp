#pragma once

#include "sim/head_group.hpp"
#include "sim/tokens/token_metrics.hpp"

namespace kvreplay {

/// Mean and standard deviation (divided by n) of every channel of one query head over a set of rows: what
/// differs between the window and the decoding steps is the drift that makes a selection age ([IAP] fig. 2).
struct ChannelMoments {
  Vector<double> mean, deviation;  ///< [d]
};

/// `rows` are positions with a query, not empty.
template <class T>
ChannelMoments query_moments(const HeadGroup<T>& group, Index g, Rows rows) {
  const Matrix<double> q =
      group.q[g].middleRows(rows.begin - group.first_query(), rows.count()).template cast<double>();
  ChannelMoments moments;
  moments.mean = q.colwise().mean().transpose();
  moments.deviation =
      (q.rowwise() - moments.mean.transpose()).array().square().colwise().mean().sqrt().transpose();
  return moments;
}

}  // namespace kvreplay
