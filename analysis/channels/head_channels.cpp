#include "analysis/channels/head_channels.hpp"

#include <algorithm>

namespace kvreplay {

const ChannelBasis& ChannelPart::basis_in(const ChannelSetting& setting) const {
  for (const auto& [own, other] : others)
    if (own == setting) return other;
  return basis;
}

template <class T>
ChannelPart channel_part(const HeadGroup<T>& group, const ChannelPlan& plan, bool with_outputs,
                         const Compute& compute) {
  const KeptSet all = all_from(group.first_held(), group.l);
  ChannelPart part;
  part.basis = channel_basis(group, all, plan.setting, with_outputs, compute);
  for (const ChannelRule& rule : plan.rules)
    if (const ChannelSetting own = plan.setting.of(rule);
        own != plan.setting && &part.basis_in(own) == &part.basis)
      part.others.emplace_back(own, channel_basis(group, all, own, with_outputs, compute));
  const ChannelScores& scores = part.basis.scores;
  part.spectrum = spectrum(scores.logits);
  part.off_diagonal_share = off_diagonal_share(scores.logits);
  if (!scores.rope_partner.empty())
    part.rope_pair_share = rope_pair_share(scores.logits, scores.rope_partner);
  return part;
}

template <class T>
HeadChannels<T> head_channels(const HeadGroup<T>& group, const ChannelPlan& plan,
                              std::span<const ChannelPart> parts, bool with_vectors, const Compute& compute) {
  const KeptSet all = all_from(group.first_held(), group.l);
  HeadChannels<T> found;
  for (const ChannelPart& part : parts) {
    auto& orders = found.order.emplace_back();
    for (const ChannelRule& rule : plan.rules)
      orders.push_back(channel_order(rule, part.basis_in(plan.setting.of(rule)).scores));
  }
  // Searches take their time: those of all parts at once.
  const std::size_t cases = plan.cases.size();
  std::vector<ChannelSelection> chosen(parts.size() * cases);
  compute.workers.parallel_for(std::ssize(chosen), [&](std::ptrdiff_t n) {
    const std::size_t p = static_cast<std::size_t>(n) / cases, c = static_cast<std::size_t>(n) % cases;
    const ChannelCase& which = plan.cases[c];
    chosen[n] = select_channels(plan.rules[which.rule], parts[p].basis_in(plan.setting_of(which)).scores,
                                found.order[p][which.rule], which.pruned);
  });
  found.cases.resize(cases);
  each_part(group, plan.per_query_head(), [&](Index p, const HeadGroup<T>& mine) {
    std::vector<CacheCase> caches;
    for (std::size_t c = 0; c < cases; ++c) {
      const ChannelBasis& basis = parts[p].basis_in(plan.setting_of(plan.cases[c]));
      ChannelSelection& selection = chosen[p * cases + c];
      PrunedChannels& sums = found.cases[c];
      caches.push_back({all, selection.pruned, basis.keys.prunable});
      sums.channels += static_cast<double>(std::count(selection.pruned.begin(), selection.pruned.end(), 1));
      if (plan.bounds(plan.cases[c])) {
        sums.lower_bound = selection.lower_bound;
        sums.proven = selection.proven;
      }
      sums.window_reconstruction += subset_error(basis.window, selection.pruned);
      sums.future_reconstruction += subset_error(basis.future, selection.pruned);
      sums.window_logits_sq += basis.window.sum();
      sums.future_logits_sq += basis.future.sum();
      sums.bytes += cache_bytes(caches.back(), group.d(), group.d_v());
      sums.pruned.push_back(std::move(selection.pruned));
    }
    found.outputs.push_back(case_outputs(mine, plan.window, plan.future, caches, with_vectors, compute));
  });
  for (PrunedChannels& sums : found.cases) sums.channels /= static_cast<double>(parts.size());
  return found;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_CHANNELS(T)                                                                        \
  template ChannelPart channel_part(const HeadGroup<T>&, const ChannelPlan&, bool, const Compute&); \
  template HeadChannels<T> head_channels(const HeadGroup<T>&, const ChannelPlan&,                   \
                                         std::span<const ChannelPart>, bool, const Compute&);
KVREPLAY_CHANNELS(float)
KVREPLAY_CHANNELS(double)
#undef KVREPLAY_CHANNELS
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace kvreplay
