#include "sim/tokens/expected_attention.hpp"

#include "sim/gram_sums.hpp"
#include "sim/quadratic_form.hpp"
#include "sim/rotation.hpp"
#include "sim/tokens/row_norms.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr Index kFuturePositions = 512;  // that its mean rotation covers
constexpr Index kKeysPerItem = 512;

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
    const auto [a, b] = rotated_pair(rope, j);
    R(a, a) = R(b, b) = cos;
    R(a, b) = -sin;
    R(b, a) = sin;
  }
  return R;
}

/// Cosines and sines that undo the rotation of a run of positions, divided by the attention factor.
template <class T>
class InverseRotation {
 public:
  /// Of up to kGramTile positions.
  explicit InverseRotation(const Rope& rope)
      : rope_(rope),
        offset_cos_(kGramTile, rope.rotary_dim / 2),
        offset_sin_(kGramTile, rope.rotary_dim / 2),
        cos_(kGramTile, rope.rotary_dim / 2),
        sin_(kGramTile, rope.rotary_dim / 2) {
    for (Index r = 0; r < kGramTile; ++r)
      for (Index j = 0; j < offset_cos_.cols(); ++j) {
        const double angle = static_cast<double>(r) * rope.inv_freq[j];
        offset_cos_(r, j) = std::cos(angle) / rope.attention_factor;
        offset_sin_(r, j) = std::sin(angle) / rope.attention_factor;
      }
  }

  /// The positions from `first` on.
  void move_to(Index first) {
    for (Index j = 0; j < cos_.cols(); ++j) {
      const double angle = static_cast<double>(first) * rope_.inv_freq[j];
      const double cos = std::cos(angle), sin = std::sin(angle);
      for (Index r = 0; r < kGramTile; ++r) {
        cos_(r, j) = static_cast<T>(cos * offset_cos_(r, j) - sin * offset_sin_(r, j));
        sin_(r, j) = static_cast<T>(sin * offset_cos_(r, j) + cos * offset_sin_(r, j));
      }
    }
  }

  /// x [d] of the r-th of them.
  void apply(Index r, T* x) const {
    const T *cos = cos_.data() + r * cos_.cols(), *sin = sin_.data() + r * sin_.cols();
    const Index pairs = cos_.cols();
    const auto turn = [&](T& a, T& b, Index j) {
      const T turned = a * cos[j] + b * sin[j];
      b = b * cos[j] - a * sin[j];
      a = turned;
    };
    if (rope_.style == Rope::Style::half)
      for (Index j = 0; j < pairs; ++j) turn(x[j], x[j + pairs], j);
    else
      for (Index j = 0; j < pairs; ++j) turn(x[2 * j], x[2 * j + 1], j);
  }

 private:
  const Rope& rope_;
  Matrix<double> offset_cos_, offset_sin_;  // [kGramTile, rotary_dim / 2], as are these:
  Matrix<T> cos_, sin_;
};

/// Mean and covariance of the un-rotated queries of every query head, over the positions from
/// kExpectedAttentionFirst to l-1.
struct QueryMoments {
  std::vector<Vector<double>> mean;        // G of [d]
  std::vector<Matrix<double>> covariance;  // G of [d, d]
};

/// Sums over some of one query head's queries x less a point near their mean.
struct MomentSums {
  Vector<double> sum;          // [d]
  std::vector<double> square;  // of x^T x, gram_simd.hpp
};

/// Adds `rows` queries q [rows, d] at the positions that `rotation` stands at. panels: scratch for them.
template <class T>
void add_queries(const T* q, Index rows, const InverseRotation<T>& rotation, const Vector<T>& near,
                 std::vector<T>& panels, MomentSums& sums) {
  constexpr Index W = kPanelWidth<T>;
  const Index d = near.size();
  Vector<T> x(d), sum = Vector<T>::Zero(d);
  for (Index r = 0; r < rows; ++r) {
    x = Eigen::Map<const Vector<T>>(q + r * d, d);
    rotation.apply(r, x.data());
    x -= near;
    sum += x;
    for (Index c = 0; c < d; c += W) {
      T* to = panels.data() + panel_entry<T>(r, c, rows);
      std::fill(std::copy_n(x.data() + c, std::min(W, d - c), to), to + W, T{0});
    }
  }
  sums.sum += sum.template cast<double>();
  add_gram(panels.data(), rows, d, sums.square.data());
}

/// Some point near the mean of the un-rotated queries of each query head, so that their moments about it do
/// not cancel: the first queries' mean.
template <class T>
std::vector<Vector<T>> near_means(const HeadGroup<T>& group, InverseRotation<T> rotation) {
  const Index d = group.d(), n = std::min<Index>(64, group.l - kExpectedAttentionFirst);
  rotation.move_to(kExpectedAttentionFirst);
  std::vector<Vector<T>> near;
  for (const HeadMatrix<T>& q : group.q) {
    near.push_back(Vector<T>::Zero(d));
    for (Index r = 0; r < n; ++r) {
      Vector<T> x = q.row(kExpectedAttentionFirst + r - group.first_query()).transpose();
      rotation.apply(r, x.data());
      near.back() += x / static_cast<T>(n);
    }
  }
  return near;
}

template <class T>
QueryMoments query_moments(const HeadGroup<T>& group, Workers& workers) {
  const Index d = group.d(), n = group.l - kExpectedAttentionFirst;
  const std::size_t G = group.G();
  const InverseRotation<T> rotation(*group.rope);
  const std::vector<Vector<T>> near = near_means(group, rotation);

  const Index per_item = gram_item_rows(n), items = div_up(n, per_item);
  std::vector<std::vector<MomentSums>> sums(G, std::vector<MomentSums>(items));
  workers.parallel_for(items, [&](Index item) {
    InverseRotation<T> own = rotation;
    std::vector<T> panels(panels_of<T>(d) * kGramTile * kPanelWidth<T>);
    for (std::size_t g = 0; g < G; ++g)
      sums[g][item] = {Vector<double>::Zero(d), std::vector<double>(gram_blocks_size<T>(d))};
    const Index end = kExpectedAttentionFirst + std::min((item + 1) * per_item, n);
    for (Index at = kExpectedAttentionFirst + item * per_item; at < end; at += kGramTile) {
      own.move_to(at);
      for (std::size_t g = 0; g < G; ++g)
        add_queries(group.q[g].data() + (at - group.first_query()) * d, std::min(kGramTile, end - at), own,
                    near[g], panels, sums[g][item]);
    }
  });

  QueryMoments moments;
  for (std::size_t g = 0; g < G; ++g) {
    Vector<double> sum = Vector<double>::Zero(d);
    GramSums squares;
    for (MomentSums& part : sums[g]) {
      sum += part.sum;
      squares.push_back(std::move(part.square));
    }
    const Vector<double> offset = sum / static_cast<double>(n);
    moments.mean.push_back(near[g].template cast<double>() + offset);
    moments.covariance.push_back(total_gram<T>(squares, d, workers) / static_cast<double>(n) -
                                 offset * offset.transpose());
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
  // The logit that a future query is expected to give key k, of every query head.
  std::vector<QuadraticForm<T>> logits;
  for (std::size_t g = 0; g < moments.mean.size(); ++g)
    logits.emplace_back(scale * scale / 2 * (R * moments.covariance[g] * R.transpose()),
                        scale * (R * moments.mean[g]));

  Matrix<double> scores = Matrix<double>::Zero(G, l);  // first the logits, then the scores
  const Index items = div_up(n, kKeysPerItem);
  workers.parallel_for(items * G, [&](Index item) {
    const Index first = kExpectedAttentionFirst + item / G * kKeysPerItem, g = item % G;
    const Index count = std::min(kKeysPerItem, l - first);
    scores.row(g).segment(first, count) =
        logits[g].at_rows(group.k.data() + first * d, count).transpose().template cast<double>();
  });
  Vector<double> norms;
  if (!form.project_values) norms = row_norms(group.v, l, workers);
  for (Index g = 0; g < G; ++g) {
    if (form.project_values) norms = projected_value_norms(group, g, workers);
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

template decltype(expected_attention_scores<float>) expected_attention_scores<float>;
template decltype(expected_attention_scores<double>) expected_attention_scores<double>;

}  // namespace kvreplay
