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

/// Size of the search for the optimum.
struct OptimalSearch {
  int rounds = 0;               ///< 0: the hull greedy was optimal at once
  std::size_t candidates = 0;   ///< budgets considered in the last round, over all heads
  std::size_t peak_states = 0;  ///< largest set of partial sums at one head
  std::size_t states = 0;       ///< partial sums kept for tracing back, last round (about 8 bytes each)
};

/// Minimises sum over h of L_h(b_h) over integer budgets of the frame: a multiple-choice knapsack.
///
/// 1. `greedy` (HullGreedy on the same curves and lower bound) gives an upper bound U. Where its last block
///    is filled to the end its budgets lie on the hulls and are optimal.
/// 2. Losses become integers, multiples of 2^-60 of U's power of two, so that everything below is exact.
///    L never rises, so sum b = total may be relaxed to sum b <= total, what is left over (the slack) going
///    anywhere. Then a budget at which L_h does not fall can be left out, as can every loss above U.
/// 3. lambda = slope of the unfinished block. With t_h the budget that minimises L_h(b) + lambda b, the
///    reduced cost r_h(b) = L_h(b) - L_h(t_h) + lambda (b - t_h) is at least 0, and any feasible b costs
///    LB + sum_h r_h(b_h) + lambda slack, where LB depends on lambda only.
/// 4. So if the optimum costs LB + c, every one of its r_h, and every partial sum of them, is at most c.
///    For a gap g, a dynamic programme over heads on the deviation sum (b_h - t_h) that drops nothing but
///    candidates and partial sums above g (counting the least the remaining heads must add per token of
///    deviation left) finds the cheapest solution within g if there is one: it is the optimum. g starts
///    at 2^-24 (U - LB) and doubles; at U - LB the greedy's budgets are known to be the optimum.
///
/// Exact but for the rounding of the losses to those multiples, all_heads + l of them in the sum. Time:
/// O(all_heads l) a round plus partial sums times candidates, which the small g keeps few: the curves of
/// many heads differ, and so some combination closes the greedy's gap almost wholly. Where all heads have the
/// same structure and every way to use the last tokens costs alike (a period of little importance that
/// ends in much, in all heads), partial sums become many; the worst case is that of the plain programme,
/// O(all_heads total l) time and 8 bytes for each of all_heads total partial sums.
/// Deterministic; never worse than the greedy in total_loss, and the greedy's own budgets where equal.
Budgets optimal(const BudgetFrame& frame, const LossCurves& curves, const HullGreedy& greedy,
                OptimalSearch* search = nullptr);

}  // namespace kvreplay
