#include "sim/tokens/key_scores.hpp"

#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/value_rows.hpp"

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
  // Calls work(item, first, keys, n) for some keys at a time.
  const auto for_keys = [&](const auto& work) {
    workers.parallel_for(items, [&](Index item) {
      const Index first = item * kKeysPerItem;
      work(item, first, group.k.data() + first * d, std::min(kKeysPerItem, l - first));
    });
  };
  Matrix<double> sums = Matrix<double>::Zero(items, d);
  for_keys([&](Index item, Index first, const T* keys, Index n) {
    add_weighted_rows_f64(keys, per_norm.data() + first, n, d, sums.row(item).data());
  });
  const Vector<double> mean = sums.colwise().sum().transpose();
  const double mean_norm = mean.norm();
  Vector<double> scores = Vector<double>::Zero(l);
  if (!(mean_norm > 0)) return scores;
  for_keys([&](Index, Index first, const T* keys, Index n) {
    row_products(keys, mean.data(), n, d, scores.data() + first);
  });
  scores = -scores.cwiseProduct(per_norm) / mean_norm;
  return scores;
}

template Vector<double> knorm_scores(const HeadGroup<float>&, Workers&);
template Vector<double> knorm_scores(const HeadGroup<double>&, Workers&);
template Vector<double> keydiff_scores(const HeadGroup<float>&, Workers&);
template Vector<double> keydiff_scores(const HeadGroup<double>&, Workers&);

}  // namespace kvreplay
