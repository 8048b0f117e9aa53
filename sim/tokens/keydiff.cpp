#include "sim/tokens/keydiff.hpp"

#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

constexpr Index kCosinesPerItem = 256;

template <class T>
KeyDiff<T>::KeyDiff(const HeadMatrix<T>& keys, Workers& workers)
    : keys_(keys),
      workers_(workers),
      per_norm_(Vector<double>::Zero(keys.rows())),
      sum_(Vector<double>::Zero(keys.cols())) {}

template <class T>
template <class Work>
void KeyDiff<T>::for_tokens(Index n, const Work& work) const {
  workers_.parallel_for(div_up(n, kCosinesPerItem), [&](Index item) {
    const Index first = item * kCosinesPerItem;
    work(first, std::min(kCosinesPerItem, n - first));
  });
}

template <class T>
void KeyDiff<T>::add(std::span<const Index> tokens) {
  const Index d = keys_.cols();
  for_tokens(std::ssize(tokens), [&](Index first, Index count) {
    for (const Index p : tokens.subspan(first, count)) {
      double square = 0;
      value_rows_simd<T>().row_squares(keys_.data() + p * d, 1, d, &square);
      per_norm_[p] = square > 0 ? 1 / std::sqrt(square) : 0;
    }
  });
  add(tokens, 1);
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
