#pragma once

#include "sim/head_group.hpp"
#include "sim/simd/panel.hpp"

#include <vector>

namespace kvreplay {

/// A matrix [d, d] as panel_gemm() takes it: [panels][d][W].
template <class T>
std::vector<T> square_panels(const Matrix<double>& S);

/// x S x^T + b . x of many x [d]; S symmetric [d, d].
template <class T>
class QuadraticForm {
 public:
  QuadraticForm(const Matrix<double>& S, const Vector<double>& b);

  /// The form at the rows of x [n, d], [n]: sums in T, 2 n d^2 flops.
  Vector<T> at_rows(const T* x, Index n) const;

 private:
  Index d_;
  std::vector<T> panels_;  // of S, [panels][d][W]
  Vector<T> linear_;       // b, [d]
};

}  // namespace kvreplay
