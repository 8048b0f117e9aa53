#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// Scores that need no attention rows. Definitions: METRICS.md.

/// -||k_p||, [l].
template <class T>
Vector<double> knorm_scores(const HeadGroup<T>& group);

/// -cos(k_p, mean of the normalised candidate keys), [l]; a zero key has cosine 0.
template <class T>
Vector<double> keydiff_scores(const HeadGroup<T>& group);

/// The first tokens, which Expected Attention ranks above all.
inline constexpr Index kExpectedAttentionFirst = 4;

/// Expected Attention of every query head, [G, l], 0 for the first tokens; needs the rotation, their
/// successors' queries and l > kExpectedAttentionFirst.
template <class T>
Matrix<double> expected_attention_scores(const HeadGroup<T>& group, Workers& workers);

}  // namespace kvreplay
