#include "sim/tokens/key_scores.hpp"

#include "sim/tokens/row_norms.hpp"

#include <algorithm>

namespace kvreplay {

template <class T>
Vector<double> knorm_scores(const HeadGroup<T>& group, Workers& workers) {
  return -row_norms(group.k, group.l, workers);
}

template <class T>
Vector<double> keydiff_scores(const HeadGroup<T>& group, Workers& workers) {
  constexpr Index kKeysPerItem = 256;
  const Index l = group.l, d = group.d(), items = (l + kKeysPerItem - 1) / kKeysPerItem;
  const Vector<double> norms = row_norms(group.k, l, workers);
  const Vector<double> per_norm = (norms.array() > 0).select(norms.cwiseInverse(), 0.0);
  // Calls work(first, k) for the keys [n, d] in float64, some at a time.
  const auto for_keys = [&](const auto& work) {
    workers.parallel_for(items, [&](Index item) {
      const Index first = item * kKeysPerItem, n = std::min(kKeysPerItem, l - first);
      const Matrix<double> k = group.k.middleRows(first, n).template cast<double>();
      work(first, k);
    });
  };
  Matrix<double> sums(items, d);
  for_keys([&](Index first, const Matrix<double>& k) {
    sums.row(first / kKeysPerItem) = per_norm.segment(first, k.rows()).transpose() * k;
  });
  const Vector<double> mean = sums.colwise().sum().transpose();
  const double mean_norm = mean.norm();
  Vector<double> scores = Vector<double>::Zero(l);
  if (!(mean_norm > 0)) return scores;
  for_keys([&](Index first, const Matrix<double>& k) {
    scores.segment(first, k.rows()) = -(k * mean).cwiseProduct(per_norm.segment(first, k.rows())) / mean_norm;
  });
  return scores;
}

template Vector<double> knorm_scores(const HeadGroup<float>&, Workers&);
template Vector<double> knorm_scores(const HeadGroup<double>&, Workers&);
template Vector<double> keydiff_scores(const HeadGroup<float>&, Workers&);
template Vector<double> keydiff_scores(const HeadGroup<double>&, Workers&);

}  // namespace kvreplay
