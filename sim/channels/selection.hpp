#pragma once

#include "data/dump.hpp"
#include "sim/channels/subset.hpp"
#include "sim/eviction/policy.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Which key channels each method prunes. Definitions: sim/channels/CHANNELS.md.

namespace kvreplay {

enum class ChannelMethod {
  magnitude,   ///< small ||k_c||
  think,       ///< ThinK: small H_cc
  iap,         ///< IAP: greedy on H
  exchange,    ///< swaps from another set while its error by H falls
  output,      ///< greedy, then swaps, on the output-space matrix
  optimal,     ///< the smallest error by H, as far as the search gets
  rope_pairs,  ///< greedy on H, whole rotation pairs at a time
};
const std::vector<ChannelMethod>& all_channel_methods();
std::string_view name_of(ChannelMethod method);
std::optional<ChannelMethod> channel_method_named(std::string_view name);

/// METHOD, or exchange+METHOD: swaps from another start than iap.
struct ChannelRule {
  std::string name;
  ChannelMethod method = ChannelMethod::think;
  ChannelMethod start = ChannelMethod::iap;  ///< of exchange
  bool needs_outputs() const { return method == ChannelMethod::output || start == ChannelMethod::output; }
  bool needs_rope() const {
    return method == ChannelMethod::rope_pairs || start == ChannelMethod::rope_pairs;
  }
  /// Whether it takes channels one after the other, so that an order says what it prunes, or what it swaps
  /// from.
  bool has_order() const { return method != ChannelMethod::exchange && method != ChannelMethod::optimal; }
};
std::optional<ChannelRule> channel_rule_named(std::string_view name);

/// What a selection looks at.
struct ChannelScores {
  Vector<double> key_sq;            ///< [d], ||k_c||^2
  Matrix<double> logits;            ///< [d, d], H
  Matrix<double> outputs;           ///< [d, d], the output-space matrix; empty where no rule needs it
  std::vector<Index> rope_partner;  ///< [d], -1 where a channel is not rotated; empty where unknown
  ChannelSet fixed;                 ///< [d], 1 where a channel is never pruned; or empty
};

/// The channels in the order in which a rule prunes them, those that it never prunes left out: of a rule that
/// is not nested, the order that it starts from.
std::vector<Index> channel_order(const ChannelRule& rule, const ChannelScores& scores);

struct ChannelSelection {
  ChannelSet pruned;                  ///< [d]
  std::optional<double> lower_bound;  ///< of optimal: no n channels lose less by H
  bool proven = false;                ///< of optimal: the set is known to be the best
};
/// The n channels that a rule prunes, `order` being its channel_order(): fewer where fewer may be pruned, or
/// where the next rotation pair does not fit.
ChannelSelection select_channels(const ChannelRule& rule, const ChannelScores& scores,
                                 const std::vector<Index>& order, Index n);

/// How many of d channels a ratio in [0, 1) prunes: floor(r d + 1e-9); in ThinK's code and kvpress int(d r)
/// in floating point.
Index pruned_channels(double ratio, Index d, Semantics semantics);

/// The share of channels to protect, in percent ([IAP] 3.3).
struct Protection {
  double least = 0, most = 0;
};
/// Channels with ||k_c|| above mean + one standard deviation, largest first, at least `least` and at most
/// `most` percent of them all: [d].
ChannelSet protected_channels(const Vector<double>& key_sq, const Protection& protection);

/// The channel that each one is rotated with, -1 where it is not rotated: [d].
std::vector<Index> rope_partners(const Rope& rope, Index d);

}  // namespace kvreplay
