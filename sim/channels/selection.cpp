#include "sim/channels/selection.hpp"

#include "sim/channels/convex_bound.hpp"
#include "sim/channels/subset.hpp"
#include "sim/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {
namespace {

/// Whole rotation pairs, and channels that are not rotated on their own; in order of their lowest channel.
std::vector<std::vector<Index>> rotation_units(const std::vector<Index>& partner) {
  std::vector<std::vector<Index>> units;
  for (Index c = 0; c < std::ssize(partner); ++c) {
    const Index other = partner[c];
    if (other < 0)
      units.push_back({c});
    else if (c < other)
      units.push_back({c, other});
  }
  return units;
}

/// `order` up to the last whole unit within n channels.
ChannelSet whole_units(const std::vector<Index>& order, const std::vector<Index>& partner, Index n, Index d) {
  Index end = std::min(n, std::ssize(order));
  if (end > 0 && end < std::ssize(order)) {
    const auto last = order[end - 1], next = order[end];
    if (partner[last] == next) --end;
  }
  return first_of(order, end, d);
}

}  // namespace

std::optional<ChannelRule> channel_rule_named(std::string_view name) {
  ChannelRule rule{std::string(name)};
  const std::size_t plus = name.find('+');
  const auto method = kChannelMethods.named(name.substr(0, plus));
  if (!method) return std::nullopt;
  rule.method = *method;
  if (plus == std::string_view::npos) return rule;
  const auto start = kChannelMethods.named(name.substr(plus + 1));
  if (*method != ChannelMethod::exchange || !start || !kChannelMethods[*start].has_order) return std::nullopt;
  rule.start = *start;
  return rule;
}

std::vector<Index> channel_order(const ChannelRule& rule, const ChannelScores& scores) {
  switch (rule.first()) {
    case ChannelMethod::magnitude:
      return ascending_order(scores.key_sq, scores.fixed);
    case ChannelMethod::think:
      return ascending_order(scores.diagonal, scores.fixed);
    case ChannelMethod::output:
      return greedy_order(scores.outputs, scores.fixed);
    case ChannelMethod::rope_pairs:
      return greedy_order(scores.logits, rotation_units(scores.rope_partner), scores.fixed);
    case ChannelMethod::iap:
    case ChannelMethod::exchange:
    case ChannelMethod::convex:
      break;
  }
  return greedy_order(scores.logits, scores.fixed);
}

ChannelSelection select_channels(const ChannelRule& rule, const ChannelScores& scores,
                                 const std::vector<Index>& order, Index n) {
  const Index d = scores.key_sq.size();
  const ChannelMethod first = rule.first();
  ChannelSet start = first == ChannelMethod::rope_pairs ? whole_units(order, scores.rope_partner, n, d)
                                                        : first_of(order, n, d);
  if (first == ChannelMethod::output)
    start = exchange_channels(scores.outputs, std::move(start), scores.fixed);
  if (rule.method == ChannelMethod::exchange)
    return {exchange_channels(scores.logits, std::move(start), scores.fixed), std::nullopt, false};
  if (rule.method == ChannelMethod::convex) {
    BoundedSubset best = bounded_subset(scores.logits, n, scores.fixed, start);
    return {std::move(best.set), best.lower_bound, best.proven};
  }
  return {std::move(start), std::nullopt, false};
}

Index pruned_channels(double ratio, Index d, Semantics semantics) {
  const double share = ratio * static_cast<double>(d);
  return static_cast<Index>(semantics == Semantics::paper ? std::floor(share + 1e-9) : share);
}

ChannelSet protected_channels(const Vector<double>& key_sq, const Protection& protection) {
  const Index d = key_sq.size();
  const Vector<double> norms = key_sq.cwiseMax(0.0).cwiseSqrt();
  const double mean = norms.mean();
  const double deviation = std::sqrt((norms.array() - mean).square().mean());
  const auto percent = [&](double x) {
    const auto rounded = static_cast<Index>(std::floor(x * static_cast<double>(d) / 100 + 0.5));
    return x <= 0 ? Index{0} : std::min(std::max<Index>(rounded, 1), d);
  };
  const Index outstanding = (norms.array() > mean + deviation).count();
  const Index count = std::clamp(outstanding, percent(protection.least), percent(protection.most));
  return first_of(ascending_order(-norms, {}), count, d);
}

std::vector<Index> rope_partners(const Rope& rope, Index d) {
  std::vector<Index> partner(d, -1);
  for (Index j = 0; j < rope.rotary_dim / 2; ++j) {
    const auto [a, b] = rotated_pair(rope, j);
    partner[a] = b;
    partner[b] = a;
  }
  return partner;
}

}  // namespace kvreplay
