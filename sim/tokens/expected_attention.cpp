#include "sim/tokens/expected_attention.hpp"

#include "sim/gram_sums.hpp"
#include "sim/quadratic_form.hpp"
#include "sim/rotation.hpp"
#include "sim/simd/softmax_exp.hpp"
#include "sim/tokens/row_norms.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr Index kKeysPerItem = 512;

/// The mean of the rotations of `count` positions from `first` on.
class MeanRotation {
 public:
  MeanRotation(Index first, Index count, const Rope& rope) : rope_(rope) {
    for (Index j = 0; j < rope.rotary_dim / 2; ++j) {
      double cos = 0, sin = 0;
      for (Index p = first; p < first + count; ++p) {
        cos += std::cos(static_cast<double>(p) * rope.inv_freq[j]);
        sin += std::sin(static_cast<double>(p) * rope.inv_freq[j]);
      }
      cos_.push_back(cos * rope.attention_factor / static_cast<double>(count));
      sin_.push_back(sin * rope.attention_factor / static_cast<double>(count));
    }
  }

  /// R M of M [d, n], each of whose columns is a query.
  template <class M>
  M rotated(M x) const {
    for (std::size_t j = 0; j < cos_.size(); ++j) {
      const auto [a, b] = rotated_pair(rope_, static_cast<Index>(j));
      const Eigen::RowVectorXd first = x.row(a);
      x.row(a) = cos_[j] * first - sin_[j] * x.row(b);
      x.row(b) = sin_[j] * first + cos_[j] * x.row(b);
    }
    return x;
  }

 private:
  const Rope& rope_;
  std::vector<double> cos_, sin_;  // of each pair
};

/// Cosines and sines that undo the rotation of a run of positions, divided by the attention factor.
template <class T>
class InverseRotation {
 public:
  /// Turns up to kGramTile positions.
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

/// Sums over some of one query head's queries x less a point near their mean.
struct MomentSums {
  Vector<double> sum;          // [d]
  std::vector<double> square;  // of x^T x, gram_sums.hpp
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
std::vector<Vector<T>> near_means(const HeadGroup<T>& group, Index first, InverseRotation<T> rotation) {
  const Index d = group.d(), n = std::min<Index>(64, group.l - first);
  rotation.move_to(first);
  std::vector<Vector<T>> near;
  for (const HeadMatrix<T>& q : group.q) {
    near.push_back(Vector<T>::Zero(d));
    for (Index r = 0; r < n; ++r) {
      Vector<T> x = q.row(first + r - group.first_query()).transpose();
      rotation.apply(r, x.data());
      near.back() += x / static_cast<T>(n);
    }
  }
  return near;
}

template <class T>
QueryMoments query_moments(const HeadGroup<T>& group, Index first, Workers& workers) {
  const Index d = group.d(), n = group.l - first;
  const std::size_t G = group.G();
  const InverseRotation<T> rotation(*group.rope);
  const std::vector<Vector<T>> near = near_means(group, first, rotation);

  const Index per_item = gram_item_rows(n), items = div_up(n, per_item);
  std::vector<std::vector<MomentSums>> sums(G, std::vector<MomentSums>(items));
  workers.parallel_for(items, [&](Index item) {
    InverseRotation<T> own = rotation;
    std::vector<T> panels(panels_of<T>(d) * kGramTile * kPanelWidth<T>);
    for (std::size_t g = 0; g < G; ++g)
      sums[g][item] = {Vector<double>::Zero(d), std::vector<double>(gram_blocks_size<T>(d))};
    const Index end = first + std::min((item + 1) * per_item, n);
    for (Index at = first + item * per_item; at < end; at += kGramTile) {
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

std::vector<ExpectedLogit> expected_logits(const QueryMoments& moments, const Rope& rope, double scale,
                                           Index l, Index n_future) {
  const MeanRotation R(l, n_future, rope);
  std::vector<ExpectedLogit> logits;
  for (std::size_t g = 0; g < moments.mean.size(); ++g) {
    const Matrix<double> once = R.rotated(moments.covariance[g]).transpose();
    logits.push_back({scale * scale / 2 * R.rotated(once), scale * R.rotated(moments.mean[g])});
  }
  return logits;
}

void weigh_expected(Eigen::Ref<Eigen::RowVectorXd> scores, const Vector<double>& norms,
                    const ExpectedAttention& form) {
  const Index n = scores.size() - form.n_sink;
  scores.head(form.n_sink).setZero();
  auto e = scores.tail(n).array();
  softmax_exp(e.data(), n, e.maxCoeff());
  e = (e / e.sum() + form.epsilon) * norms.tail(n).transpose().array();
}

template <class T>
Matrix<double> expected_attention_scores(const HeadGroup<T>& group, const ExpectedAttention& form,
                                         Workers& workers) {
  const Index l = group.l, d = group.d(), G = group.G(), n = l - form.n_sink;
  std::vector<QuadraticForm<T>> logits;
  for (const auto& [S, b] : expected_logits(query_moments(group, form.n_sink, workers), *group.rope,
                                            group.rule.scale, l, form.n_future))
    logits.emplace_back(S, b);

  Matrix<double> scores = Matrix<double>::Zero(G, l);  // first the logits, then the scores
  const Index items = div_up(n, kKeysPerItem);
  workers.parallel_for(items * G, [&](Index item) {
    const Index first = form.n_sink + item / G * kKeysPerItem, g = item % G;
    const Index count = std::min(kKeysPerItem, l - first);
    scores.row(g).segment(first, count) =
        logits[g].at_rows(group.k.data() + first * d, count).transpose().template cast<double>();
  });
  Vector<double> norms;
  if (!form.project_values) norms = row_norms(group.v, l, workers);
  for (Index g = 0; g < G; ++g) {
    if (form.project_values) norms = projected_value_norms(group, g, workers);
    weigh_expected(scores.row(g), norms, form);
  }
  return scores;
}

Matrix<double> with_first_on_top(Matrix<double> scores, Index n_sink) {
  for (Index r = 0; r < scores.rows(); ++r) scores.row(r).head(n_sink).setConstant(scores.row(r).maxCoeff());
  return scores;
}

template decltype(expected_attention_scores<float>) expected_attention_scores<float>;
template decltype(expected_attention_scores<double>) expected_attention_scores<double>;

}  // namespace kvreplay
