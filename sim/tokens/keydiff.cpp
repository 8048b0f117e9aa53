#include "sim/tokens/keydiff.hpp"

#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

template <class T>
KeyDiff<T>::KeyDiff(const HeadMatrix<T>& keys, Index n, Workers& workers) : keys_(keys), workers_(workers) {
  const Vector<double> norms = row_norms(keys, n, workers);
  per_norm_ = (norms.array() > 0).select(norms.cwiseInverse(), 0.0);
}

template <class T>
Vector<double> KeyDiff<T>::scores(std::span<const Index> tokens) const {
  constexpr Index kTokensPerItem = 256;
  const Index n = std::ssize(tokens), d = keys_.cols(), items = div_up(n, kTokensPerItem);
  const auto for_tokens = [&](const auto& work) {
    workers_.parallel_for(items, [&](Index item) {
      const Index first = item * kTokensPerItem;
      work(item, first, std::min(kTokensPerItem, n - first));
    });
  };
  Vector<double> per_norm(n);
  for (Index i = 0; i < n; ++i) per_norm[i] = per_norm_[tokens[i]];
  Matrix<double> sums = Matrix<double>::Zero(items, d);
  for_tokens([&](Index item, Index first, Index count) {
    value_rows_simd<T>().add_weighted_rows_f64(keys_.data(), tokens.data() + first, per_norm.data() + first,
                                               count, d, sums.row(item).data());
  });
  const Vector<double> mean = sums.colwise().sum().transpose();
  const double mean_norm = mean.norm();
  Vector<double> scores = Vector<double>::Zero(n);
  if (std::isnan(mean_norm)) return scores.setConstant(mean_norm);
  if (!(mean_norm > 0)) return scores;
  for_tokens([&](Index, Index first, Index count) {
    value_rows_simd<T>().row_products(keys_.data(), tokens.data() + first, mean.data(), count, d,
                                      scores.data() + first);
  });
  return -scores.cwiseProduct(per_norm) / mean_norm;
}

template class KeyDiff<float>;
template class KeyDiff<double>;

}  // namespace kvreplay
