#pragma once

#include "data/dump.hpp"

#include <span>
#include <vector>

namespace kvreplay {

/// Budgets of all KV heads: [layers, heads] row-major, tokens kept a head.
using Budgets = std::vector<Index>;

/// Constraints on every allocation: budgets between `lower` and `l` that sum to `total`.
struct BudgetFrame {
  Index layers = 0, heads = 0;  ///< KV heads a layer
  Index l = 0;                  ///< candidates a head
  Index total = 0;              ///< B_total, 0 .. l all_heads()
  Index lower = 0;   ///< tokens every head keeps (a floor, pinned tokens); lower all_heads() <= total
  double sigma = 0;  ///< the compression ratio that total was made of; for published semantics

  Index all_heads() const { return layers * heads; }
  /// The mean budget, total / all_heads().
  double mean() const;
};

/// B_total = floor((1 - sigma) l heads + 1/2). A decimal sigma is off by up to 2^-53, so 0.9 of 15 tokens
/// would miss 3/2 and round down: anything within l heads 2^-52 below a half counts as the half.
Index total_budget(double sigma, Index l, Index all_heads);

/// Frame for a compression ratio. `lower` is cut to l and to the even share of `total`.
BudgetFrame budget_frame(Index layers, Index heads, Index l, double sigma, Index lower = 0);

/// True if budgets satisfy the frame: their number, their bounds, their sum.
bool fits(const BudgetFrame& frame, const Budgets& budgets);

/// Real shares as integers between `lower` and `upper` that sum to `total`: rounded down, the remainder by
/// largest fraction, then lower index. Shares that do not sum to the total, or leave the bounds, are first
/// scaled by the one factor that makes the shares, cut to the bounds, sum to it; where even an infinite
/// factor is too small, the shares of 0 take the rest evenly.
///
/// Shares are compared as multiples of 2^-24 of a token, so that fractions that differ by rounding only are
/// equal. Needs shares >= 0 and finite, lower n <= total <= upper n, n upper < 2^38.
Budgets round_shares(std::span<const double> shares, Index total, Index lower, Index upper);

}  // namespace kvreplay
