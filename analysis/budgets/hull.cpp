#include "analysis/budgets/hull.hpp"

#include <algorithm>
#include <cassert>

namespace kvreplay {

void append_hull(std::span<const double> gain, Index first, std::int32_t head,
                 std::vector<HullBlock>& blocks) {
  struct Pool {
    double sum;
    std::int32_t begin, end;
    double mean() const { return sum / static_cast<double>(end - begin); }
  };
  std::vector<Pool> pools;
  for (Index j = first; j < std::ssize(gain); ++j) {
    const auto at = static_cast<std::int32_t>(j);
    pools.push_back({gain[j], at, at + 1});
    // Equal means stay apart: single tokens of equal importance then have exactly equal slopes.
    while (pools.size() > 1 && pools.back().mean() > pools[pools.size() - 2].mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().sum += last.sum;
      pools.back().end = last.end;
    }
  }
  for (const Pool& pool : pools) blocks.push_back({pool.mean(), head, pool.begin, pool.end});
}

HullGreedy::HullGreedy(const LossCurves& curves, Index lower)
    : all_heads_(curves.all_heads()), lower_(lower) {
  for (Index h = 0; h < all_heads_; ++h)
    append_hull(curves.gain(h), lower, static_cast<std::int32_t>(h), blocks_);
  std::sort(blocks_.begin(), blocks_.end(), [](const HullBlock& a, const HullBlock& b) {
    if (a.slope != b.slope) return a.slope > b.slope;
    return a.head != b.head ? a.head < b.head : a.begin < b.begin;
  });
}

Budgets HullGreedy::budgets(Index total) const {
  Budgets budgets(static_cast<std::size_t>(all_heads_), lower_);
  Index left = total - lower_ * all_heads_;
  assert(left >= 0);
  for (const HullBlock& block : blocks_) {
    if (left == 0) break;
    const Index taken = std::min<Index>(left, block.end - block.begin);
    budgets[block.head] += taken;
    left -= taken;
  }
  assert(left == 0);
  return budgets;
}

const HullBlock* HullGreedy::unfinished(Index total) const {
  Index left = total - lower_ * all_heads_;
  for (const HullBlock& block : blocks_) {
    if (left == 0) return nullptr;
    if (left < block.end - block.begin) return &block;
    left -= block.end - block.begin;
  }
  return nullptr;
}

}  // namespace kvreplay
