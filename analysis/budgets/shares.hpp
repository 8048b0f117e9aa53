#pragma once

#include "analysis/budgets/budget_frame.hpp"

#include <span>

namespace kvreplay {

/// Real shares as integers between `lower` and `upper` that sum to `total`: rounded down, the remainder by
/// largest fraction, then lower index. Shares that do not sum to the total, or leave the bounds, are first
/// scaled by the one factor that makes the shares, cut to the bounds, sum to it; where even an infinite
/// factor is too small, the shares of 0 take the rest evenly.
///
/// Shares are compared as multiples of 2^-24 of a token, so that fractions that differ by rounding only are
/// equal. Needs shares >= 0 and finite, lower n <= total <= upper n, n upper < 2^38.
Budgets round_shares(std::span<const double> shares, Index total, Index lower, Index upper);

}  // namespace kvreplay
