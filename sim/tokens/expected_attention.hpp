#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <vector>

namespace kvreplay {

/// Number of first tokens, which Expected Attention ranks above all.
inline constexpr Index kExpectedAttentionFirst = 4;

/// (expected weight + epsilon) times the norm of the value, or of the value after W_O of its query head.
struct ExpectedAttention {
  double epsilon = 0.02;
  Index n_sink = kExpectedAttentionFirst;  ///< first tokens, ranked above all and left out of the moments
  Index n_future = 512;                    ///< positions behind the prompt that the mean rotation covers
  bool project_values = false;             ///< only where the group has wo, and no gate before it
  bool operator==(const ExpectedAttention&) const = default;
};

/// Expected Attention of every query head, [G, l], 0 for the first tokens; needs the rotation, their
/// successors' queries and l > n_sink.
template <class T>
Matrix<double> expected_attention_scores(const HeadGroup<T>& group, const ExpectedAttention& form,
                                         Workers& workers);

/// Mean and covariance of the un-rotated queries of every query head, over the positions from n_sink to
/// l-1.
struct QueryMoments {
  std::vector<Vector<double>> mean;        // G of [d]
  std::vector<Matrix<double>> covariance;  // G of [d, d]
};
/// k S k^T + b . k: the logarithm of the weight that a future query is expected to give a key k.
struct ExpectedLogit {
  Matrix<double> S;  // [d, d], symmetric
  Vector<double> b;  // [d]
};
/// The expected logit of every query head, [G].
std::vector<ExpectedLogit> expected_logits(const QueryMoments& moments, const Rope& rope, double scale,
                                           Index l, Index n_future = ExpectedAttention{}.n_future);
/// Replaces the expected logits of one query head's keys with their scores, [l]. norms [l]: norms of the
/// values, or of the values after W_O.
void weigh_expected(Eigen::Ref<Eigen::RowVectorXd> scores, const Vector<double>& norms,
                    const ExpectedAttention& form = {});

/// Scores with the first tokens at their row's maximum: as ties go to the lower position, they rank above
/// all.
Matrix<double> with_first_on_top(Matrix<double> scores, Index n_sink = kExpectedAttentionFirst);

}  // namespace kvreplay
