#include "sim/tokens/keydiff.hpp"

#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

constexpr Index kCosinesPerItem = 256;

template <class T>
KeyDiff<T>::KeyDiff(const HeadMatrix<T>& keys, Index n, Workers& workers)
    : keys_(keys), workers_(workers), sum_(Vector<double>::Zero(keys.cols())) {
  const Vector<double> norms = row_norms(keys, n, workers);
  per_norm_ = (norms.array() > 0).select(norms.cwiseInverse(), 0.0);
}

template <class T>
template <class Work>
void KeyDiff<T>::for_tokens(Index n, const Work& work) const {
  workers_.parallel_for(div_up(n, kCosinesPerItem), [&](Index item) {
    const Index first = item * kCosinesPerItem;
    work(first, std::min(kCosinesPerItem, n - first));
  });
}

template <class T>
void KeyDiff<T>::add(std::span<const Index> tokens, double times) {
  const Index n = std::ssize(tokens), d = keys_.cols();
  Vector<double> weights(n);
  for (Index i = 0; i < n; ++i) weights[i] = times * per_norm_[tokens[i]];
  Matrix<double> sums = Matrix<double>::Zero(div_up(n, kCosinesPerItem), d);
  for_tokens(n, [&](Index first, Index count) {
    value_rows_simd<T>().add_weighted_rows_f64(keys_.data(), tokens.data() + first, weights.data() + first,
                                               count, d, sums.row(first / kCosinesPerItem).data());
  });
  sum_ += sums.colwise().sum().transpose();
}

template <class T>
Vector<double> KeyDiff<T>::scores(std::span<const Index> tokens) const {
  const Index n = std::ssize(tokens);
  const double norm = sum_.norm();
  Vector<double> scores = Vector<double>::Zero(n);
  if (std::isnan(norm)) return scores.setConstant(norm);
  if (!(norm > 0)) return scores;
  for_tokens(n, [&](Index first, Index count) {
    double* out = scores.data() + first;
    value_rows_simd<T>().row_products(keys_.data(), tokens.data() + first, sum_.data(), count, keys_.cols(),
                                      out);
    for (Index i = 0; i < count; ++i) out[i] *= -per_norm_[tokens[first + i]];
  });
  return scores / norm;
}

template class KeyDiff<float>;
template class KeyDiff<double>;

}  // namespace kvreplay
