#pragma once

#include <cstddef>

namespace kvreplay {

/// The t such that |T| <= t has probability `share` (0 < share < 1), where T has Student's distribution with
/// `freedom` >= 1 degrees of freedom: to within a few units in the last place of what the distribution
/// function resolves. O(freedom) time, so `freedom` is capped at 10^6, beyond which t changes in the seventh
/// digit only.
double student_t(double share, std::ptrdiff_t freedom);

}  // namespace kvreplay
