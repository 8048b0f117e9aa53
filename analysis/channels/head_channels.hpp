#pragma once

#include "analysis/channels/channel_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

// Everything that `channels` finds out about one head.

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

/// Interaction of the channels of a group.
struct ChannelPart {
  ChannelBasis basis;
  std::vector<std::pair<ChannelSetting, ChannelBasis>>
      others;               ///< settings of rules that state their own, with their bases
  Vector<double> spectrum;  ///< [d]
  double off_diagonal_share = 0;
  double rope_pair_share = std::numeric_limits<double>::quiet_NaN();  ///< where the dump tells its rotation

  const ChannelBasis& basis_in(const ChannelSetting& setting) const;
};
/// With `with_outputs`, the interaction through the outputs is computed too.
template <class T>
ChannelPart channel_part(const HeadGroup<T>& group, const ChannelPlan& plan, bool with_outputs,
                         const Compute& compute);

/// The channels that a case prunes of a head, and their cost to its logits and its cache: sums over the
/// head's parts.
struct PrunedChannels {
  std::vector<ChannelSet> pruned;     ///< [parts] of [d]
  double channels = 0;                ///< of them, the mean over the parts
  std::optional<double> lower_bound;  ///< where the plan bounds the rule
  bool proven = false;                ///< of such a rule: the set is known to be the best
  double window_reconstruction = 0, future_reconstruction = 0;  ///< ||Q K^T - Q S K^T||_F^2
  double window_logits_sq = 0, future_logits_sq = 0;            ///< ||Q K^T||_F^2 of the prunable keys
  double bytes = 0;
};

/// The cases of a plan on one head, whose parts are those that have a selection of their own (each_part()).
template <class T>
struct HeadChannels {
  std::vector<std::vector<std::vector<Index>>> order;  ///< [parts][rules]
  std::vector<PrunedChannels> cases;                   ///< of the plan
  std::vector<CaseOutputs<T>> outputs;                 ///< [parts]
};
template <class T>
HeadChannels<T> head_channels(const HeadGroup<T>& group, const ChannelPlan& plan,
                              std::span<const ChannelPart> parts, bool with_vectors, const Compute& compute);

}  // namespace kvreplay
