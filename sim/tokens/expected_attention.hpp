#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// The first tokens, which Expected Attention ranks above all.
inline constexpr Index kExpectedAttentionFirst = 4;

/// (expected weight + epsilon) times the norm of the value, or of the value after W_O of its query head.
struct ExpectedAttention {
  double epsilon = 0.02;
  bool project_values = false;  ///< only where the group has wo
};

/// Expected Attention of every query head, [G, l], 0 for the first tokens; needs the rotation, their
/// successors' queries and l > kExpectedAttentionFirst.
template <class T>
Matrix<double> expected_attention_scores(const HeadGroup<T>& group, const ExpectedAttention& form,
                                         Workers& workers);

/// The same with the first tokens at their row's maximum: as ties go to the lower position, they rank above
/// all.
Matrix<double> with_first_on_top(Matrix<double> scores);

}  // namespace kvreplay
