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

 private:
  Matrix<double> L_, Lt_;  // [m, m], and its transpose
  bool definite_ = true;
};

}  // namespace kvreplay
