#pragma once

#include "sim/head_matrix.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

namespace kvreplay {

/// L L^T = A of a symmetric matrix, by blocks whose products are panel_gemm()'s. In float64; the same bytes
/// for any number of threads.
class Cholesky {
 public:
  /// A [m, m]; what is above its diagonal is not looked at. m^3 / 3 flops.
  Cholesky(Matrix<double> A, Workers& workers);

  /// Whether A was positive definite to rounding; all else needs it.
  bool definite() const { return definite_; }
  /// A^-1 B of B [m, columns]. 2 m^2 columns flops.
  Matrix<double> solve(const Matrix<double>& B, Workers& workers) const;
  /// L^-1, [m, m]. m^3 / 3 flops.
  Matrix<double> inverse_factor(Workers& workers) const;

 private:
  /// x := L^-1 x for a panel x [m][kPanelWidth] that is 0 before row `from`, a multiple of that width.
  void divide(Index from, double* x) const;

  Matrix<double> L_, Lt_;  // [m, m], and its transpose
  bool definite_ = true;
};

}  // namespace kvreplay
