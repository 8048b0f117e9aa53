#pragma once

#include "viewer/work/decode_view.hpp"

#include <limits>
#include <vector>

namespace kvreplay::viewer {

/// When each position of a decoding run leaves the cache: what cache_after() says, for all steps at once.
struct CacheFates {
  static constexpr Index kStays = std::numeric_limits<Index>::max();
  static constexpr Index kWithPrompt = std::numeric_limits<Index>::min();
  /// [T], the step whose cut it leaves in; kStays; kWithPrompt where it was evicted before the first cut.
  std::vector<Index> left_at;
  Index first_step = 0;  ///< the position of step 0
};
CacheFates cache_fates(const DecodeRun& run);

enum class Held {
  not_there_yet,
  kept,
  leaves_now,  ///< in the cut that follows the step
  gone,
};
/// `position` in [0, T), `step` from 0.
Held held_at(const CacheFates& fates, Index position, Index step);

std::size_t bytes_of(const CacheFates& fates);

}  // namespace kvreplay::viewer
