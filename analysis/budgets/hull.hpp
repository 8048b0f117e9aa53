#pragma once

#include "analysis/budgets/loss_curve.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvreplay {

/// An edge of a lower convex hull: budgets begin..end of one head, every token of which gains `slope`.
struct HullBlock {
  double slope = 0;
  std::int32_t head = 0;
  std::int32_t begin = 0, end = 0;
};

/// Appends the edges of the lower convex hull of a loss curve over budgets first..l, left to right: the gains
/// [l] are pooled where they rise (pool-adjacent-violators), so slopes never rise. O(l).
void append_hull(std::span<const double> gain, Index first, std::int32_t head,
                 std::vector<HullBlock>& blocks);

/// LU-KV's allocation ([LUK] eq. 9-10): the hull blocks of all heads by falling slope, among equal slopes by
/// lower head (row-major), then lower budget; built once for any number of totals.
class HullGreedy {
 public:
  /// Every head has `lower` tokens from the start.
  HullGreedy(const LossCurves& curves, Index lower);

  /// The `total` largest gains; total between lower all_heads and l all_heads. The loss is the curve's at
  /// the budget (total_loss), not the hull's: the last block may be left half filled.
  Budgets budgets(Index total) const;

  /// The block that takes the last token; nullptr where that block is filled to its end.
  const HullBlock* unfinished(Index total) const;

  Index lower() const { return lower_; }
  std::size_t blocks() const { return blocks_.size(); }  ///< of sizeof(HullBlock) bytes: what this holds

 private:
  Index all_heads_, lower_;
  std::vector<HullBlock> blocks_;
};

}  // namespace kvreplay
