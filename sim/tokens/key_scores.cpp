#include "sim/tokens/key_scores.hpp"

#include "sim/tokens/value_norms.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

constexpr Index kFuturePositions = 512;  // that its mean rotation covers
constexpr Index kChunk = 512;            // rows of one work item

Index pair_first(const Rope& rope, Index j) { return rope.style == Rope::Style::half ? j : 2 * j; }
Index pair_second(const Rope& rope, Index j) {
  return rope.style == Rope::Style::half ? j + rope.rotary_dim / 2 : 2 * j + 1;
}

/// Cosines and sines of the positions [first, first + count), divided by the attention factor: what undoes
/// the rotation.
template <class T>
class InverseRotation {
 public:
  InverseRotation(Index first, Index count, const Rope& rope)
      : rope_(rope), cos_(count, rope.rotary_dim / 2), sin_(count, rope.rotary_dim / 2) {
    for (Index r = 0; r < count; ++r)
      for (Index j = 0; j < cos_.cols(); ++j) {
        const double angle = static_cast<double>(first + r) * rope.inv_freq[j];
        cos_(r, j) = static_cast<T>(std::cos(angle) / rope.attention_factor);
        sin_(r, j) = static_cast<T>(std::sin(angle) / rope.attention_factor);
      }
  }

  /// x has a row for each of the positions.
  void apply(Matrix<T>& x) const {
    for (Index r = 0; r < x.rows(); ++r)
      for (Index j = 0; j < cos_.cols(); ++j) {
        T& a = x(r, pair_first(rope_, j));
        T& b = x(r, pair_second(rope_, j));
        const T unrotated_a = a * cos_(r, j) + b * sin_(r, j);
        b = b * cos_(r, j) - a * sin_(r, j);
        a = unrotated_a;
      }
  }

 private:
  const Rope& rope_;
  Matrix<T> cos_, sin_;
};

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
  Vector<double> k(group.d());  // Eigen's sums of an expression that converts take one number at a time
  for (Index p = 0; p < group.l; ++p) {
    k = group.k.row(p).transpose().template cast<double>();
    norms(p) = k.norm();
    if (norms(p) > 0) mean += k / norms(p);
  }
  const double mean_norm = mean.norm();
  Vector<double> scores = Vector<double>::Zero(group.l);
  if (!(mean_norm > 0)) return scores;
  for (Index p = 0; p < group.l; ++p)
    if (norms(p) > 0) {
      k = group.k.row(p).transpose().template cast<double>();
      scores(p) = -k.dot(mean) / (norms(p) * mean_norm);
    }
  return scores;
}

namespace {

/// Mean and covariance of the un-rotated queries of every query head, over the positions from
/// kExpectedAttentionFirst to l-1.
struct QueryMoments {
  std::vector<Vector<double>> mean;        // G of [d]
  std::vector<Matrix<double>> covariance;  // G of [d, d]
};

template <class T>
QueryMoments query_moments(const HeadGroup<T>& group, Workers& workers) {
  const Index d = group.d(), n = group.l - kExpectedAttentionFirst;
  const std::size_t G = static_cast<std::size_t>(group.G());
  const Index chunks = (n + kChunk - 1) / kChunk;
  const auto unrotated = [&](std::size_t g, Index first, const InverseRotation<T>& rotation, Index count) {
    Matrix<T> x = group.q[g].middleRows(first - group.first_query(), count);
    rotation.apply(x);
    return x;
  };
  // Moments are taken about a point near the mean, the first rows' mean, so that their difference does not
  // cancel.
  std::vector<Vector<T>> near(G);
  const Index few = std::min<Index>(64, n);
  const InverseRotation<T> few_rotation(kExpectedAttentionFirst, few, *group.rope);
  for (std::size_t g = 0; g < G; ++g)
    near[g] = unrotated(g, kExpectedAttentionFirst, few_rotation, few).colwise().mean().transpose();

  std::vector<std::vector<Vector<double>>> sums(
      G, std::vector<Vector<double>>(static_cast<std::size_t>(chunks)));
  std::vector<std::vector<Matrix<double>>> squares(
      G, std::vector<Matrix<double>>(static_cast<std::size_t>(chunks)));
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index first = kExpectedAttentionFirst + chunk * kChunk, count = std::min(kChunk, group.l - first);
    const InverseRotation<T> rotation(first, count, *group.rope);
    for (std::size_t g = 0; g < G; ++g) {
      Matrix<T> x = unrotated(g, first, rotation, count);
      x.rowwise() -= near[g].transpose();
      sums[g][chunk] = x.colwise().sum().transpose().template cast<double>();
      squares[g][chunk] = (x.transpose() * x).eval().template cast<double>();
    }
  });
  QueryMoments moments{std::vector<Vector<double>>(G), std::vector<Matrix<double>>(G)};
  for (std::size_t g = 0; g < G; ++g) {
    Vector<double> sum = Vector<double>::Zero(d);
    Matrix<double> square = Matrix<double>::Zero(d, d);
    for (const Vector<double>& part : sums[g]) sum += part;
    for (const Matrix<double>& part : squares[g]) square += part;
    const Vector<double> offset = sum / static_cast<double>(n);
    moments.mean[g] = near[g].template cast<double>() + offset;
    moments.covariance[g] = square / static_cast<double>(n) - offset * offset.transpose();
  }
  return moments;
}

}  // namespace

template <class T>
Matrix<double> expected_attention_scores(const HeadGroup<T>& group, const ExpectedAttention& form,
                                         Workers& workers) {
  const Index l = group.l, d = group.d(), G = group.G(), n = l - kExpectedAttentionFirst;
  const double scale = group.rule.scale;
  const QueryMoments moments = query_moments(group, workers);
  const Matrix<double> R = mean_rotation(l, kFuturePositions, d, *group.rope);
  std::vector<Vector<T>> linear;
  std::vector<Matrix<T>> quadratic;
  for (std::size_t g = 0; g < moments.mean.size(); ++g) {
    linear.push_back((scale * (R * moments.mean[g])).template cast<T>());
    quadratic.push_back(
        ((scale * scale / 2) * (R * moments.covariance[g] * R.transpose())).eval().template cast<T>());
  }

  Matrix<double> scores = Matrix<double>::Zero(G, l);  // first the logits e, then the scores
  const Index chunks = (n + kChunk - 1) / kChunk;
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index first = kExpectedAttentionFirst + chunk * kChunk, count = std::min(kChunk, l - first);
    const Matrix<T> k = group.k.middleRows(first, count);
    for (Index g = 0; g < G; ++g) {
      const Vector<T> e = k * linear[g] + (k * quadratic[g]).cwiseProduct(k).rowwise().sum();
      scores.row(g).segment(first, count) = e.transpose().template cast<double>();
    }
  });
  for (Index g = 0; g < G; ++g) {
    const Vector<double> norms =
        form.project_values ? projected_value_norms(group, g, workers) : value_norms(group, workers);
    auto e = scores.row(g).tail(n).array();
    e = (e - e.maxCoeff()).exp();
    e = (e / e.sum() + form.epsilon) * norms.tail(n).transpose().array();
  }
  return scores;
}

Matrix<double> with_first_on_top(Matrix<double> scores) {
  for (Index r = 0; r < scores.rows(); ++r)
    scores.row(r).head(kExpectedAttentionFirst).setConstant(scores.row(r).maxCoeff());
  return scores;
}

template Vector<double> knorm_scores(const HeadGroup<float>&);
template Vector<double> knorm_scores(const HeadGroup<double>&);
template Vector<double> keydiff_scores(const HeadGroup<float>&);
template Vector<double> keydiff_scores(const HeadGroup<double>&);
template Matrix<double> expected_attention_scores(const HeadGroup<float>&, const ExpectedAttention&,
                                                  Workers&);
template Matrix<double> expected_attention_scores(const HeadGroup<double>&, const ExpectedAttention&,
                                                  Workers&);

}  // namespace kvreplay
