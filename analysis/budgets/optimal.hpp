#pragma once

#include "analysis/budgets/loss_curve.hpp"

namespace kvreplay {

/// What the search for the optimum took.
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
