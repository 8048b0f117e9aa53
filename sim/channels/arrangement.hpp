#pragma once

#include "sim/head_group.hpp"

#include <string_view>
#include <vector>

// The orders in which the channels of a head are laid out, so that those that belong together stand side by
// side. Definitions: sim/channels/CHANNELS.md.

namespace kvreplay {

enum class ChannelArrangement { stored, pairs, frequency, energy, clusters };

struct ChannelArrangementFacts {
  ChannelArrangement id;
  std::string_view name;
  std::string_view plain;
  std::string_view meaning;        ///< one line
  bool needs_pairs = false;        ///< which channels are rotated together
  bool needs_frequencies = false;  ///< and how fast
};
inline constexpr auto kChannelArrangements = facts_table<ChannelArrangementFacts>({
    {.id = ChannelArrangement::stored, .name = "stored", .plain = "as stored", .meaning = "0, 1, 2, .."},
    {.id = ChannelArrangement::pairs,
     .name = "pairs",
     .plain = "rotation partners side by side",
     .meaning = "The two channels that RoPE rotates together are neighbours; those that it leaves are last",
     .needs_pairs = true},
    {.id = ChannelArrangement::frequency,
     .name = "frequency",
     .plain = "slowest rotation first",
     .meaning = "By the radians that RoPE turns a channel a position; those that it leaves are first",
     .needs_pairs = true,
     .needs_frequencies = true},
    {.id = ChannelArrangement::energy,
     .name = "energy",
     .plain = "costliest alone first",
     .meaning = "By H_cc: what a channel costs the logits when it alone is pruned"},
    {.id = ChannelArrangement::clusters,
     .name = "clusters",
     .plain = "those that interact side by side",
     .meaning = "Clusters of |H_ce| / sqrt(H_cc H_ee), by average linkage"},
});
constexpr std::string_view name_of(ChannelArrangement arrangement) {
  return kChannelArrangements[arrangement].name;
}

/// RoPE's angle for each channel, in radians per position; 0 where a channel is not rotated: [d].
std::vector<double> rope_frequencies(const Rope& rope, Index d);

/// The channel at each place: a permutation of 0..d-1. Ties take the lower channel. `H` [d, d]; `partner`
/// [d] (rope_partners()) and `frequency` [d] where the arrangement needs them, else InputError. Clusters
/// cost O(d^3).
std::vector<Index> arranged_channels(ChannelArrangement arrangement, const Matrix<double>& H,
                                     const std::vector<Index>& partner, const std::vector<double>& frequency);

}  // namespace kvreplay
