#include "sim/quadratic_form.hpp"

#include "sim/simd/panel_gemm.hpp"

#include <algorithm>

namespace kvreplay {

template <class T>
std::vector<T> square_panels(const Matrix<double>& S) {
  const Index d = S.rows();
  std::vector<T> panels(panels_of<T>(d) * d * kPanelWidth<T>, T{0});
  for (Index m = 0; m < d; ++m)
    for (Index n = 0; n < d; ++n) panels[panel_entry<T>(m, n, d)] = static_cast<T>(S(m, n));
  return panels;
}

template <class T>
QuadraticForm<T>::QuadraticForm(const Matrix<double>& S, const Vector<double>& b)
    : d_(S.rows()), panels_(square_panels<T>(S)), linear_(b.cast<T>()) {}

template <class T>
Vector<T> QuadraticForm<T>::at_rows(const T* x, Index n) const {
  constexpr Index W = kPanelWidth<T>, kRows = 96;  // whose product stays in the first cache
  Matrix<T> product(kRows, W);
  Vector<T> sums = Vector<T>::Zero(n);
  for (Index first = 0; first < n; first += kRows) {
    const Index rows = std::min(kRows, n - first);
    const Eigen::Map<const Matrix<T>> part(x + first * d_, rows, d_);
    for (Index c = 0; c < d_; c += W) {
      const Index width = std::min(W, d_ - c);
      panel_gemm(rows, d_, part.data(), d_, panels_.data() + c * d_, product.data());
      for (Index r = 0; r < rows; ++r)
        sums(first + r) += (product.row(r).head(width) + linear_.segment(c, width).transpose())
                               .dot(part.row(r).segment(c, width));
    }
  }
  return sums;
}

template decltype(square_panels<float>) square_panels<float>;
template decltype(square_panels<double>) square_panels<double>;
template class QuadraticForm<float>;
template class QuadraticForm<double>;

}  // namespace kvreplay
