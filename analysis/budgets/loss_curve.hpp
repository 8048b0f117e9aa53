#pragma once

#include "analysis/budgets/budget_frame.hpp"
#include "sim/head_group.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvreplay {

/// The loss curves of all heads under one order ([LUK] eq. 6): L_h(b) is the importance that is lost when
/// head h keeps the first b tokens of its order. L_h never rises, L_h(l) = 0. Heads are numbered row-major
/// over [layers, heads]; they may be set by several threads at once.
class LossCurves {
 public:
  LossCurves(Index all_heads, Index l);

  /// `order`: the candidates, most wanted first, [l]; `importance`: by position, [l], finite, at least 0.
  void set(Index head, std::span<const std::int32_t> order, std::span<const double> importance);

  /// The curve itself, [l + 1], as a result folder has it: finite, never rising. Its gains are rounded once
  /// more.
  void set_losses(Index head, std::span<const double> losses);

  Index all_heads() const { return all_heads_; }
  Index l() const { return l_; }
  /// gain(h)[j]: importance of the token at place j of the order, so L_h(j) - L_h(j + 1) before rounding:
  /// [l].
  std::span<const double> gain(Index head) const;
  /// L_h(0..l): [l + 1].
  std::span<const double> loss(Index head) const;
  /// All of L: [all_heads, l + 1].
  const std::vector<double>& losses() const { return loss_; }

 private:
  Index all_heads_, l_;
  std::vector<double> gain_, loss_;
};

/// The curves of heads whose tokens' importance stands in `values` [all_heads, ..] from `column` on, [l]
/// each, most wanted first. `normalise_by_layer`: divided by the sum over the layer's n_kv heads, where that
/// is not 0.
LossCurves loss_curves(const Matrix<double>& values, Index column, Index l, Index n_kv,
                       bool normalise_by_layer);

/// The curves of the same tokens, every head's in the order of its gains: the oracle metric's loss, what is
/// lost without an optimality gap ([LUK] eq. 7).
LossCurves by_importance(const LossCurves& curves);

/// sum over h of L_h(b_h).
double total_loss(const LossCurves& curves, const Budgets& budgets);

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
