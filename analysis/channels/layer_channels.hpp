#pragma once

#include "analysis/channels/channel_plan.hpp"
#include "analysis/run/stage.hpp"
#include "sim/channels/channel_interaction.hpp"
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

/// What a layer's files hold, collected head by head: a row is a KV head, or a query head where each has a
/// selection of its own. Several threads may fill different rows at once.
class LayerChannels {
 public:
  void begin(const ChannelPlan& plan, const DumpShape& shape);

  std::vector<Matrix<double>> interaction, outputs;    ///< [rows] of [d, d]
  std::vector<Vector<double>> spectrum;                ///< [rows] of [d]
  std::vector<std::vector<std::vector<Index>>> order;  ///< [rules][rows]; empty where a rule has none
  std::vector<std::vector<ChannelSet>> pruned;         ///< [cases][rows]
  std::vector<ChannelMoments> window, future;          ///< [n_q]
  std::vector<Index> rope_partner;                     ///< [d], or empty

  /// layer_XX/channels/.
  void write(const ResultFolder& folder, Index layer, const ChannelPlan& plan) const;

 private:
  void write_pictures(const ResultFolder& folder, Index layer) const;
};

}  // namespace kvreplay
