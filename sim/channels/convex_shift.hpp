#pragma once

#include "sim/channels/convex_bound.hpp"
#include "sim/channels/incumbent.hpp"

namespace kvreplay {

struct ConvexProblem {
  SubsetProblem convex;  ///< the error of each set that can still be better than the best known
  Tangent tangent;
  double bound = 0;  ///< on the problem that was given; holds where `convex` is closed too
};

/// Shifts the diagonal of a problem so that its bound is high: Newton steps on
///   max over u of min over x of f(x) + mu logdet(A - Diag(u)),
/// the determinant on the changes that keep the sum of x, mu falling with the steps' success, until the bound
/// stalls or reaches the best known set. Channels that the bound settles leave the problem; rounded tangent
/// points are offered to `best`. Any symmetric A will do. O(m^3) a step, some ten of them.
ConvexProblem convexified(SubsetProblem problem, Incumbent& best);

}  // namespace kvreplay
