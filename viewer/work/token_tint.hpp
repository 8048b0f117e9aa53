#pragma once

#include "sim/kept_set.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/work/desk.hpp"
#include "viewer/work/run.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// What the tokens of a prompt cost, as the text is tinted by it: of one head, or summed over many.

namespace kvreplay::viewer {

/// One metric of every token, summed over heads; [l].
struct TokenSums {
  std::vector<double> values;
};
/// Over the KV heads of a layer, at a window of w rows; of a run without its dump as its results have it.
/// Throws InputError where the run has no such metric.
TokenSums layer_token_sums(const Run& run, Index layer, TokenMetric metric, Index window, JobControl& job);
std::size_t bytes_of(const TokenSums& sums);

/// Values of the l tokens with their places on a scale of colours, and among each other.
struct TokenTint {
  std::vector<double> values;
  std::vector<std::int32_t> place;  ///< how many tokens come before, the largest first; ties by position
  std::vector<std::int16_t> level;  ///< 0 .. 255 on `scale`; 0 also for NaN; with the sign of a difference
  ValueScale scale;                 ///< from the low end to the largest value, or magnitude of a difference
  bool is_difference = false;
  /// The same by rank: 255 the largest value, 0 the smallest.
  std::uint8_t rank_level(Index token) const;
  /// As it is shown: -255 .. 255.
  int shown_level(Index token, bool by_rank) const {
    return by_rank && !is_difference ? rank_level(token) : level[token];
  }
};
/// Logarithmic from the median of what is positive, where no value is negative and some are
/// positive (a decade where that is one value); else linear over all values. O(l log l).
TokenTint token_tint(std::vector<double> values);
/// Of values less another run's, or of how many places each token is further up than there: magnitudes on
/// such a scale, places by magnitude. NaN where either is, or one run has fewer tokens.
TokenTint difference_tint(const std::vector<double>& own, const std::vector<double>& pinned, bool by_rank);
std::size_t bytes_of(const TokenTint& tint);

/// In how many heads every token is kept, as the heads come in and change one by one.
class KeptCounts {
 public:
  void reset(Index heads, Index l);
  /// A head's kept set, [l], in place of the last one. O(l).
  void take(Index head, const KeptSet& kept);

  Index heads() const { return known_; }  ///< of which something is known
  Index count(Index token) const { return counts_[token]; }
  Index tokens() const { return std::ssize(counts_); }

 private:
  std::vector<std::int32_t> counts_;     // [l]
  std::vector<std::vector<bool>> kept_;  // by head: its last set; empty: not known
  Index known_ = 0;
};

}  // namespace kvreplay::viewer
