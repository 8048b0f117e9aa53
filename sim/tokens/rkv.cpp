#include "sim/tokens/rkv.hpp"

#include "sim/attention.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvreplay {
namespace {

constexpr Index kKeysAtOnce = 256;      // rows of a tile of cosines
constexpr Index kMostCosineItems = 16;  // each has sums of its own
constexpr double kHiddenLogit = -std::numeric_limits<double>::infinity();
constexpr double kNoNorm = 1e-8;  // added to every norm

/// Logits of a window row against the tokens before `end`, the largest of the query heads, [end].
Vector<double> largest_logits(const HeadGroup<double>& group, Index i, Index end) {
  Vector<double> largest = Vector<double>::Constant(end, kHiddenLogit);
  const Index first = std::min(group.first_visible(i), end), n = std::min(group.end_visible(i), end) - first;
  if (n <= 0) return largest;
  for (const HeadMatrix<double>& q : group.q) {
    Vector<double> z =
        group.k.middleRows(first, n) * q.row(i - group.first_query()).transpose() * group.rule.scale;
    if (group.rule.softcap) z = (z.array() / *group.rule.softcap).tanh().matrix() * *group.rule.softcap;
    largest.segment(first, n) = largest.segment(first, n).cwiseMax(z);
  }
  return largest;
}

/// Softmax of a row with hidden columns; 0 where all are.
Vector<double> softmax_of(const Vector<double>& z) {
  const double most = z.size() > 0 ? z.maxCoeff() : kHiddenLogit;
  if (!(most > kHiddenLogit)) return Vector<double>::Zero(z.size());
  const Vector<double> e = (z.array() - most).exp();
  return e / e.sum();
}

Vector<double> max_pooled(const Vector<double>& x) {
  Vector<double> result(x.size());
  for (Index p = 0; p < x.size(); ++p) {
    const Index first = std::max<Index>(p - kRkvPool / 2, 0),
                end = std::min<Index>(p + kRkvPool / 2 + 1, x.size());
    result[p] = x.segment(first, end - first).maxCoeff();
  }
  return result;
}

Vector<double> mixed(const Vector<double>& importance, const Vector<double>& redundancy) {
  Vector<double> score = -(1 - kRkvLambda) * redundancy;
  score.head(importance.size()) += kRkvLambda * importance;
  return score;
}

/// Each candidate's column sum of the cosines, diagonal and last similar ones aside, [l].
Vector<double> cosine_sums(const HeadGroup<double>& group, Workers& workers) {
  const Index l = group.l;
  HeadMatrix<double> keys = group.k.topRows(l);
  for (Index p = 0; p < l; ++p) keys.row(p) /= keys.row(p).norm() + kNoNorm;
  const Index tiles = div_up(l, kKeysAtOnce), items = std::min(tiles, kMostCosineItems);
  std::vector<Vector<double>> sums(static_cast<std::size_t>(items));
  workers.parallel_for(items, [&](Index item) {
    Vector<double>& sum = sums[static_cast<std::size_t>(item)] = Vector<double>::Zero(l);
    Matrix<double> cosines;
    for (Index tile = item * tiles / items; tile < (item + 1) * tiles / items; ++tile) {
      const Index begin = tile * kKeysAtOnce, n = std::min(kKeysAtOnce, l - begin);
      cosines.noalias() = keys.middleRows(begin, n) * keys.transpose();
      for (Index r = 0; r < n; ++r) {
        cosines(r, begin + r) = 0;
        Index last = l - 1;
        while (last > 0 && !(cosines(r, last) > kRkvThreshold)) --last;
        cosines(r, last) = 0;
        sum += cosines.row(r).transpose();
      }
    }
  });
  Vector<double> total = Vector<double>::Zero(l);
  for (const Vector<double>& sum : sums) total += sum;
  return total;
}

}  // namespace

Vector<double> rkv_scores(const HeadGroup<double>& group, Index window, Workers& workers) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const Index before = group.l - rows.count();
  std::vector<Vector<double>> weights(static_cast<std::size_t>(rows.count()));
  workers.parallel_for(rows.count(), [&](Index r) {
    weights[static_cast<std::size_t>(r)] = softmax_of(largest_logits(group, rows.begin + r, before));
  });
  Vector<double> importance = Vector<double>::Zero(before);
  for (const Vector<double>& row : weights) importance += row / static_cast<double>(rows.count());
  return mixed(max_pooled(importance),
               softmax_of(cosine_sums(group, workers) / static_cast<double>(group.l)));
}

Vector<double> rkv_reference(const HeadGroup<double>& group, Index window) {
  const Index l = group.l, first = std::max(group.first_query(), l - std::min(window, l));
  Vector<double> importance = Vector<double>::Zero(first);
  for (Index i = first; i < l; ++i) {
    std::vector<double> z(static_cast<std::size_t>(first), kHiddenLogit);
    for (Index g = 0; g < group.G(); ++g) {
      const Vector<double> of_head = attention_logits(group, g, i).z;
      for (Index p = 0; p < first; ++p) z[p] = std::max(z[p], of_head[p]);
    }
    const double most = first > 0 ? *std::max_element(z.begin(), z.end()) : kHiddenLogit;
    double sum = 0;
    for (const double x : z) sum += std::exp(x - most);
    for (Index p = 0; p < first; ++p)
      if (z[p] > kHiddenLogit) importance[p] += std::exp(z[p] - most) / sum / static_cast<double>(l - first);
  }
  Vector<double> mean = Vector<double>::Zero(l);
  for (Index a = 0; a < l; ++a) {
    std::vector<double> cosine(static_cast<std::size_t>(l), 0);
    Index last = 0;
    for (Index b = 0; b < l; ++b) {
      if (a == b) continue;
      cosine[b] = group.k.row(a).dot(group.k.row(b)) / (group.k.row(a).norm() + kNoNorm) /
                  (group.k.row(b).norm() + kNoNorm);
      if (cosine[b] > kRkvThreshold) last = b;
    }
    cosine[last] = 0;
    for (Index b = 0; b < l; ++b) mean[b] += cosine[b] / static_cast<double>(l);
  }
  Vector<double> score(l);
  const double total = mean.array().exp().sum();
  for (Index p = 0; p < l; ++p) {
    score[p] = -(1 - kRkvLambda) * std::exp(mean[p]) / total;
    double pooled = 0;
    for (Index near = p - 3; near <= p + 3; ++near)
      if (near >= 0 && near < first) pooled = std::max(pooled, importance[near]);
    if (p < first) score[p] += kRkvLambda * pooled;
  }
  return score;
}

}  // namespace kvreplay
