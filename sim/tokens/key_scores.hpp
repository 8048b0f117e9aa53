#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// Scores that need the keys alone. Definitions: METRICS.md.

/// -||k_p||, [l].
template <class T>
Vector<double> knorm_scores(const HeadGroup<T>& group, Workers& workers);

/// -cos(k_p, mean of the normalised candidate keys), [l]; a zero key has cosine 0.
template <class T>
Vector<double> keydiff_scores(const HeadGroup<T>& group, Workers& workers);

}  // namespace kvreplay
