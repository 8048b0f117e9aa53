#pragma once

#include "sim/channels/output_interaction.hpp"
#include "sim/channels/selection.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <optional>

namespace kvreplay {

/// The setting in which channels are chosen, whatever the method.
///   paper     scores from the keys that may lose channels, all but the last `recent`
///   official  ThinK's code: scores from all keys of the cache, one selection for every query head
///   kvpress   every key loses channels
struct ChannelSetting {
  Semantics semantics = Semantics::paper;
  Index recent = 32;
  Index window = 32;
  std::optional<Protection> protection;

  /// This setting, with the rule's own values where it has some.
  ChannelSetting of(const ChannelRule& rule) const {
    return {semantics, rule.recent.value_or(recent), window, rule.protection ? rule.protection : protection};
  }
  bool operator==(const ChannelSetting&) const = default;
};
/// Number of recent keys that a setting leaves whole by default.
constexpr Index default_recent(Semantics semantics) { return is_kvpress(semantics) ? 0 : 32; }

/// Key statistics of a cache from which its channels are chosen.
struct ChannelBasis {
  PrunableKeys keys;
  ChannelScores scores;   ///< inputs of the selections
  Matrix<double> window;  ///< [d, d], H of the prunable keys and the window's queries: its sums are the error
  Matrix<double> future;  ///< as `window`, with the queries of the decoding steps; 0 without any
};

/// Statistics over `cache` [l], the prompt positions that are still there. Cost: the Gram matrices, 2 l d^2
/// flops, and `with_outputs` that of output_interaction(). The backend computes all of them.
template <class T>
ChannelBasis channel_basis(const HeadGroup<T>& group, const KeptSet& cache, const ChannelSetting& setting,
                           bool with_outputs, const Compute& compute);

/// Basis without matrices, for rules that judge each channel alone. Cost: one pass over the keys and the
/// window's queries; on the CPU, whatever the backend.
template <class T>
ChannelBasis channel_diagonal(const HeadGroup<T>& group, const KeptSet& cache, const ChannelSetting& setting,
                              Workers& workers);

}  // namespace kvreplay
