#pragma once

#include "data/dump.hpp"
#include "sim/channels/subset.hpp"
#include "sim/eviction/policy_facts.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Methods that choose the key channels to prune. Definitions: sim/channels/CHANNELS.md.

namespace kvreplay {

enum class ChannelMethod { magnitude, think, iap, exchange, output, convex, rope_pairs };

struct ChannelMethodFacts {
  ChannelMethod id;
  std::string_view name;
  std::string_view meaning;  ///< one line
  /// True if the method takes channels one after the other. An order then determines the channels that it
  /// prunes or swaps from, and exchange can start from it.
  bool has_order = true;
  bool alone = false;          ///< judges each channel alone: uses at most the diagonal of H
  bool needs_outputs = false;  ///< needs the output-space matrix
  bool needs_rope = false;     ///< needs the dump's rotation pairs
  bool bounds = false;         ///< gives a lower bound on the loss by H of any set of as many channels
};

inline constexpr auto kChannelMethods = facts_table<ChannelMethodFacts>({
    {.id = ChannelMethod::magnitude,
     .name = "magnitude",
     .meaning = "The channels of smallest norm \u2016k_c\u2016",
     .alone = true},
    {.id = ChannelMethod::think,
     .name = "think",
     .meaning = "ThinK: the channels of smallest H_cc, each judged alone",
     .alone = true},
    {.id = ChannelMethod::iap,
     .name = "iap",
     .meaning = "IAP: greedily the cheapest channel, 2 H_cj then added to the cost of the others"},
    {.id = ChannelMethod::exchange,
     .name = "exchange",
     .meaning = "From IAP's set, swaps a pruned with a kept channel while the error on the logits falls",
     .has_order = false},
    {.id = ChannelMethod::output,
     .name = "output",
     .meaning = "Greedy, then swaps, on the output-space matrix M",
     .needs_outputs = true},
    {.id = ChannelMethod::convex,
     .name = "convex",
     .meaning = "The best set that swaps and a convex relaxation find, with a bound on every set",
     .has_order = false,
     .bounds = true},
    {.id = ChannelMethod::rope_pairs,
     .name = "rope_pairs",
     .meaning = "As IAP, whole rotation pairs at a time",
     .needs_rope = true},
});
constexpr std::string_view name_of(ChannelMethod method) { return kChannelMethods[method].name; }

/// The share of channels to protect, in percent ([IAP] 3.3).
struct Protection {
  double least = 0, most = 0;
  bool operator==(const Protection&) const = default;
};

/// METHOD, or exchange+METHOD (swaps from another start than iap), with values that replace the setting's.
struct ChannelRule {
  std::string name;
  ChannelMethod method = ChannelMethod::think;
  ChannelMethod start = ChannelMethod::iap;  ///< of exchange
  std::optional<Protection> protection = {};
  std::optional<Index> recent = {};

  /// Method of the set, or of the set that exchange starts from.
  ChannelMethod first() const { return method == ChannelMethod::exchange ? start : method; }
  bool has_order() const { return kChannelMethods[method].has_order; }
  bool alone() const { return kChannelMethods[method].alone; }
  bool needs_outputs() const { return kChannelMethods[first()].needs_outputs; }
  bool needs_rope() const { return kChannelMethods[first()].needs_rope; }
  bool operator==(const ChannelRule&) const = default;
};
/// Rule of this name, without values of its own; nothing where there is no such method.
std::optional<ChannelRule> channel_rule_named(std::string_view name);

/// Input of a selection.
struct ChannelScores {
  Vector<double> key_sq;            ///< [d], ||k_c||^2
  Vector<double> diagonal;          ///< [d], H_cc
  Matrix<double> logits;            ///< [d, d], H; empty where every rule judges channels alone
  Matrix<double> outputs;           ///< [d, d], the output-space matrix; empty where no rule needs it
  std::vector<Index> rope_partner;  ///< [d], -1 where a channel is not rotated; empty where unknown
  ChannelSet fixed;                 ///< [d], 1 where a channel is never pruned; or empty
};

/// Channels in the order in which a rule prunes them, without those that it never prunes. For a rule that is
/// not nested: the order that it starts from.
std::vector<Index> channel_order(const ChannelRule& rule, const ChannelScores& scores);

struct ChannelSelection {
  ChannelSet pruned;                  ///< [d]
  std::optional<double> lower_bound;  ///< of convex: no n channels lose less by H
  bool proven = false;                ///< of convex: the set is known to be the best
};
/// The n channels that a rule prunes, where `order` is its channel_order(). Fewer than n if fewer may be
/// pruned, or if the next rotation pair does not fit.
ChannelSelection select_channels(const ChannelRule& rule, const ChannelScores& scores,
                                 const std::vector<Index>& order, Index n);

/// Number of d channels that a ratio in [0, 1) prunes: floor(r d + 1e-9); in ThinK's code and kvpress int(d
/// r) in floating point.
Index pruned_channels(double ratio, Index d, Semantics semantics);

/// Channels with ||k_c|| above mean + one standard deviation, largest first, at least `least` and at most
/// `most` percent of them all: [d].
ChannelSet protected_channels(const Vector<double>& key_sq, const Protection& protection);

/// The channel that each one is rotated with, -1 where it is not rotated: [d].
std::vector<Index> rope_partners(const Rope& rope, Index d);

}  // namespace kvreplay
