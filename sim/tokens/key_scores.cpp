#include "sim/tokens/key_scores.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

constexpr Index kFuturePositions = 512;  // that its mean rotation covers
constexpr double kEpsilon = 0.02;

Index pair_first(const Rope& rope, Index j) { return rope.style == Rope::Style::half ? j : 2 * j; }
Index pair_second(const Rope& rope, Index j) {
  return rope.style == Rope::Style::half ? j + rope.rotary_dim / 2 : 2 * j + 1;
}

/// x (one row per position from `first` on) with its rotation undone.
Matrix<double> unrotated(Matrix<double> x, Index first, const Rope& rope) {
  for (Index r = 0; r < x.rows(); ++r)
    for (Index j = 0; j < rope.rotary_dim / 2; ++j) {
      const double angle = static_cast<double>(first + r) * rope.inv_freq[j];
      const double cos = std::cos(angle) / rope.attention_factor,
                   sin = std::sin(angle) / rope.attention_factor;
      double& a = x(r, pair_first(rope, j));
      double& b = x(r, pair_second(rope, j));
      const double unrotated_a = a * cos + b * sin;
      b = b * cos - a * sin;
      a = unrotated_a;
    }
  return x;
}

/// The mean of the rotations of `count` positions from `first` on, [d, d]; q rotated = R q.
Matrix<double> mean_rotation(Index first, Index count, Index d, const Rope& rope) {
  Matrix<double> R = Matrix<double>::Identity(d, d);
  for (Index j = 0; j < rope.rotary_dim / 2; ++j) {
    double cos = 0, sin = 0;
    for (Index p = first; p < first + count; ++p) {
      cos += std::cos(static_cast<double>(p) * rope.inv_freq[j]);
      sin += std::sin(static_cast<double>(p) * rope.inv_freq[j]);
    }
    cos *= rope.attention_factor / static_cast<double>(count);
    sin *= rope.attention_factor / static_cast<double>(count);
    const Index a = pair_first(rope, j), b = pair_second(rope, j);
    R(a, a) = R(b, b) = cos;
    R(a, b) = -sin;
    R(b, a) = sin;
  }
  return R;
}

}  // namespace

template <class T>
Vector<double> knorm_scores(const HeadGroup<T>& group) {
  Vector<double> scores(group.l);
  for (Index p = 0; p < group.l; ++p) scores(p) = -group.k.row(p).template cast<double>().norm();
  return scores;
}

template <class T>
Vector<double> keydiff_scores(const HeadGroup<T>& group) {
  Vector<double> norms(group.l), mean = Vector<double>::Zero(group.d());
  for (Index p = 0; p < group.l; ++p) {
    const auto k = group.k.row(p).template cast<double>();
    norms(p) = k.norm();
    if (norms(p) > 0) mean += k.transpose() / norms(p);
  }
  const double mean_norm = mean.norm();
  Vector<double> scores = Vector<double>::Zero(group.l);
  if (!(mean_norm > 0)) return scores;
  for (Index p = 0; p < group.l; ++p)
    if (norms(p) > 0)
      scores(p) = -group.k.row(p).template cast<double>().dot(mean.transpose()) / (norms(p) * mean_norm);
  return scores;
}

template <class T>
Vector<double> expected_attention_scores(const HeadGroup<T>& group, Index g, Workers& workers) {
  const Index l = group.l, d = group.d(), n = l - kExpectedAttentionFirst;
  const Rope& rope = *group.rope;
  const double scale = group.rule.scale;

  // Mean and second moment of the un-rotated queries, by chunks of rows.
  constexpr Index kChunk = 512;
  const Index chunks = (n + kChunk - 1) / kChunk;
  const auto rows_of = [&](Index chunk) {
    const Index first = kExpectedAttentionFirst + chunk * kChunk, count = std::min(kChunk, l - first);
    return unrotated(group.q[g].middleRows(first - group.first_query(), count).template cast<double>(), first,
                     rope);
  };
  std::vector<Vector<double>> sums(static_cast<std::size_t>(chunks));
  workers.parallel_for(chunks,
                       [&](Index chunk) { sums[chunk] = rows_of(chunk).colwise().sum().transpose(); });
  Vector<double> mu = Vector<double>::Zero(d);
  for (const Vector<double>& sum : sums) mu += sum;
  mu /= static_cast<double>(n);
  std::vector<Matrix<double>> squares(static_cast<std::size_t>(chunks));
  workers.parallel_for(chunks, [&](Index chunk) {
    const Matrix<double> centred = rows_of(chunk).rowwise() - mu.transpose();
    squares[chunk].noalias() = centred.transpose() * centred;
  });
  Matrix<double> sigma = Matrix<double>::Zero(d, d);
  for (const Matrix<double>& square : squares) sigma += square;
  sigma /= static_cast<double>(n);

  const Matrix<double> R = mean_rotation(l, kFuturePositions, d, rope);
  const Vector<double> mean = scale * (R * mu);
  const Matrix<double> spread = (scale * scale / 2) * (R * sigma * R.transpose());
  Vector<double> logits(n);
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index first = chunk * kChunk, count = std::min(kChunk, n - first);
    const Matrix<double> k =
        group.k.middleRows(kExpectedAttentionFirst + first, count).template cast<double>();
    logits.segment(first, count) = k * mean + (k * spread).cwiseProduct(k).rowwise().sum();
  });
  const Vector<double> weights = (logits.array() - logits.maxCoeff()).exp();
  const double total = weights.sum();
  Vector<double> scores(l);
  for (Index p = kExpectedAttentionFirst; p < l; ++p)
    scores(p) = (weights(p - kExpectedAttentionFirst) / total + kEpsilon) *
                group.v.row(p).template cast<double>().norm();
  scores.head(kExpectedAttentionFirst).setZero();
  return scores;
}

template Vector<double> knorm_scores(const HeadGroup<float>&);
template Vector<double> knorm_scores(const HeadGroup<double>&);
template Vector<double> keydiff_scores(const HeadGroup<float>&);
template Vector<double> keydiff_scores(const HeadGroup<double>&);
template Vector<double> expected_attention_scores(const HeadGroup<float>&, Index, Workers&);
template Vector<double> expected_attention_scores(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
