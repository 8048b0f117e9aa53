#pragma once

#include <cstddef>

// Student's distribution, for intervals and tests over a handful of prompts.

namespace kvreplay {

/// The confidence of every interval that the program states.
inline constexpr double kConfidence = 0.95;

/// Of fewer prompts no interval is stated and nothing is told apart: with one degree of freedom t is 12.7,
/// and two values that lie close by chance would look certain.
inline constexpr std::ptrdiff_t kFewestPrompts = 3;

/// The t such that |T| <= t has probability `share` (0 < share < 1), where T has Student's distribution with
/// `freedom` >= 1 degrees of freedom: to within a few units in the last place of what the distribution
/// function resolves. O(freedom) time, so `freedom` is capped at 10^6, beyond which t changes in the seventh
/// digit only.
double student_t(double share, std::ptrdiff_t freedom);

/// The t of the 95 % confidence interval of the mean of n >= 2 values.
double interval_t(std::ptrdiff_t n);

/// P(|T| >= t), to 1e-15 or so: the two-sided p of a mean that lies t standard errors from 0; NaN of NaN.
double student_p(double t, std::ptrdiff_t freedom);

}  // namespace kvreplay
