#pragma once

#include "analysis/channels/channel_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"

#include <cmath>
#include <limits>
#include <vector>

// Everything that `channels` finds out about one head group, or one query head where each has a selection of
// its own.

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

/// How the channels of a group interact.
struct ChannelPart {
  ChannelBasis basis;
  Vector<double> spectrum;  ///< [d]
  double off_diagonal_share = 0;
  double rope_pair_share = std::numeric_limits<double>::quiet_NaN();  ///< where the dump tells its rotation
};
/// `with_outputs` that of the outputs too.
template <class T>
ChannelPart channel_part(const HeadGroup<T>& group, const ChannelPlan& plan, bool with_outputs,
                         const Compute& compute);

/// What a rule prunes of a group, and what that costs its logits and its cache.
struct PrunedChannels {
  ChannelSelection selection;
  double channels = 0;
  double window_reconstruction = 0, future_reconstruction = 0;
  double window_logits_sq = 0, future_logits_sq = 0;  ///< of what is reconstructed
  double bytes = 0;
};
/// `scores` are those of the basis, or with outputs that it lacks; `order` is channel_order() of them.
template <class T>
PrunedChannels pruned_channels_of(const HeadGroup<T>& group, const ChannelRule& rule,
                                  const ChannelBasis& basis, const ChannelScores& scores,
                                  const std::vector<Index>& order, Index count,
                                  const CacheElements& elements);

template <class T>
struct HeadChannels {
  ChannelPart part;
  std::vector<std::vector<Index>> order;  ///< [rules]
  std::vector<PrunedChannels> cases;      ///< of the plan
  CaseOutputs<T> outputs;
};
template <class T>
HeadChannels<T> head_channels(const HeadGroup<T>& group, const ChannelPlan& plan,
                              const CacheElements& elements, bool with_vectors, const Compute& compute);

}  // namespace kvreplay
