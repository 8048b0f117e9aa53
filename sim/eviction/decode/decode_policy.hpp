#pragma once

#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/decode/decode_cache.hpp"

#include <memory>
#include <span>
#include <vector>

// A policy while decoding: its state for a cache, and the tokens that leave. The loop (decode_cpu.cpp) knows
// no policy, and policies (decode_policies.cpp) know no loop.

namespace kvreplay {

/// A cut back to the budget, after the newest token's step.
struct DecodeCut {
  std::span<const Index> by_position;  ///< all slots, ascending by position, the newest token's last
  std::span<const Index> unpinned;     ///< of these, the slots that may leave
  Index budget = 0;
};

/// Tokens are named by their slot, which only join() and leave() change. Calls come in this order: join() for
/// each initial token, init(), then for each position join(), observe() where the position has a query, and
/// victims(), each of which leave()s.
template <class T>
class DecodePolicy {
 public:
  virtual ~DecodePolicy() = default;

  /// A token took `slot`, the last one.
  virtual void join(Index slot) = 0;
  /// The token of `slot` is about to leave; the last slot's token then takes its place.
  virtual void leave(Index slot) = 0;
  /// The initial tokens are there. `start_scores` as of decode_start_scores().
  virtual void init(const Matrix<double>& start_scores) = 0;
  /// The attention of a step's query heads over all slots.
  virtual void observe(const AttentionRows<T>& rows) = 0;
  /// Positions that leave, in the order in which they leave. The policy need not check the budget.
  virtual std::vector<Index> victims(const DecodeCut& cut) = 0;
};

/// The policy of a rule; refers to the group, the rule and the slots. Throws std::invalid_argument for a rule
/// that why_not_in_decoding(), or why_not_at_intervals().
template <class T>
std::unique_ptr<DecodePolicy<T>> decode_policy(const HeadGroup<T>& group, const EvictionRule& rule,
                                               const DecodeOptions& options, const TokenSlots<T>& slots);

}  // namespace kvreplay
