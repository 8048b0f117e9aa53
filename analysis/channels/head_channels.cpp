#include "analysis/channels/head_channels.hpp"

#include <algorithm>
#include <utility>

namespace kvreplay {

template <class T>
ChannelPart channel_part(const HeadGroup<T>& group, const ChannelPlan& plan, bool with_outputs,
                         const Compute& compute) {
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  ChannelPart part{channel_basis(group, all, plan.setting, with_outputs, compute), {}, 0};
  const ChannelScores& scores = part.basis.scores;
  part.spectrum = spectrum(scores.logits);
  part.off_diagonal_share = off_diagonal_share(scores.logits);
  if (!scores.rope_partner.empty())
    part.rope_pair_share = rope_pair_share(scores.logits, scores.rope_partner);
  return part;
}

template <class T>
PrunedChannels pruned_channels_of(const HeadGroup<T>& group, const ChannelRule& rule,
                                  const ChannelBasis& basis, const ChannelScores& scores,
                                  const std::vector<Index>& order, Index count,
                                  const CacheElements& elements) {
  PrunedChannels found{select_channels(rule, scores, order, count)};
  const ChannelSet& pruned = found.selection.pruned;
  found.channels = static_cast<double>(std::count(pruned.begin(), pruned.end(), 1));
  found.window_reconstruction = subset_error(basis.window, pruned);
  found.future_reconstruction = subset_error(basis.future, pruned);
  found.window_logits_sq = basis.window.sum();
  found.future_logits_sq = basis.future.sum();
  found.bytes = cache_bytes(KeptSet(static_cast<std::size_t>(group.l), 1), pruned, basis.keys.prunable,
                            group.d(), group.d_v(), std::nullopt, elements);
  return found;
}

template <class T>
HeadChannels<T> head_channels(const HeadGroup<T>& group, const ChannelPlan& plan,
                              const CacheElements& elements, bool with_vectors, const Compute& compute) {
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  HeadChannels<T> found;
  found.part = channel_part(group, plan, plan.needs_outputs(), compute);
  // What rules choose themselves gives bases of their own.
  std::vector<std::pair<ChannelSetting, ChannelBasis>> others;
  std::vector<std::size_t> other_of;  // rules; 0 is the run's
  for (const ChannelRule& rule : plan.rules) {
    const ChannelSetting setting = plan.setting.of(rule);
    const auto known =
        std::find_if(others.begin(), others.end(), [&](const auto& other) { return other.first == setting; });
    other_of.push_back(setting == plan.setting ? 0 : static_cast<std::size_t>(known - others.begin()) + 1);
    if (other_of.back() > others.size())
      others.emplace_back(setting, channel_basis(group, all, setting, plan.needs_outputs(), compute));
  }
  const auto basis_of = [&](std::size_t rule) -> const ChannelBasis& {
    return other_of[rule] == 0 ? found.part.basis : others[other_of[rule] - 1].second;
  };
  for (std::size_t r = 0; r < plan.rules.size(); ++r)
    found.order.push_back(channel_order(plan.rules[r], basis_of(r).scores));
  found.cases.resize(plan.cases.size());
  std::vector<CacheCase> caches(plan.cases.size());
  compute.workers.parallel_for(std::ssize(plan.cases), [&](std::ptrdiff_t n) {
    const auto c = static_cast<std::size_t>(n);
    const ChannelCase& which = plan.cases[c];
    const ChannelBasis& basis = basis_of(which.rule);
    found.cases[c] = pruned_channels_of(group, plan.rules[which.rule], basis, basis.scores,
                                        found.order[which.rule], which.pruned, elements);
    caches[c] = {all, found.cases[c].selection.pruned, basis.keys.prunable};
  });
  found.outputs = case_outputs(group, plan.window, plan.future, caches, with_vectors, compute);
  return found;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_CHANNELS(T)                                                                               \
  template ChannelPart channel_part(const HeadGroup<T>&, const ChannelPlan&, bool, const Compute&);        \
  template PrunedChannels pruned_channels_of(const HeadGroup<T>&, const ChannelRule&, const ChannelBasis&, \
                                             const ChannelScores&, const std::vector<Index>&, Index,       \
                                             const CacheElements&);                                        \
  template HeadChannels<T> head_channels(const HeadGroup<T>&, const ChannelPlan&, const CacheElements&,    \
                                         bool, const Compute&);
KVREPLAY_CHANNELS(float)
KVREPLAY_CHANNELS(double)
#undef KVREPLAY_CHANNELS
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace kvreplay
