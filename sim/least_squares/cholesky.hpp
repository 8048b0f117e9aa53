#pragma once

#include "sim/head_matrix.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace kvreplay {

/// Cholesky factor L L^T = A + ridge I of a symmetric matrix, by blocks with panel_gemm() for the products.
/// Instead of divisions by a diagonal block, multiplications by its inverse. In float64; the same bytes for
/// any number of threads.
class Cholesky {
 public:
  /// A [m, m]; entries above its diagonal are not read. m^3 / 3 flops.
  Cholesky(const Matrix<double>& A, Workers& workers, double ridge = 0);
  /// The factor of the rows and columns `of` of A, ascending.
  Cholesky(const Matrix<double>& A, std::span<const Index> of, Workers& workers, double ridge = 0);

  /// True if A + ridge I was positive definite to rounding; all other functions require it.
  bool definite() const { return definite_; }
  /// (A + ridge I)^-1 B of B [m, columns]. 2 m^2 columns flops.
  Matrix<double> solve(const Matrix<double>& B, Workers& workers) const;
  /// L^-1, [m, m]. m^3 / 3 flops.
  Matrix<double> inverse_factor(Workers& workers) const;

 private:
  /// Columns that are finished together.
  static constexpr Index kBlock = 4 * kPanelWidth<double>;
  struct Finished;

  /// Replaces the matrix on and below the diagonal of L_ with its factor L.
  void factor(Workers& workers);
  Index block_width(Index begin) const { return std::min(kBlock, L_.rows() - begin); }
  const double* inverse_of(Index begin) const { return inverses_.data() + begin * kBlock; }
  /// Finishes the block that begins there, from the columns left of it. Clears definite_ if the block is not
  /// definite.
  void finish_diagonal(Index begin, Finished& block);
  /// x := L^-1 x for panels x [panels][m][kPanelWidth] that are 0 before row `from`; x := L^-T x.
  void divide(Index from, double* x, Index panels) const;
  void divide_transposed(double* x, Index panels) const;

  Matrix<double> L_;              // [m, m]; entries above the diagonal have no meaning
  std::vector<double> inverses_;  // [m][kBlock], of the diagonal blocks' L: width x width, rows kBlock apart
  bool definite_ = true;
};

/// The w >= 0 that minimises w^T H w / 2 - f^T w; H = A + ridge I [m, m] symmetric and positive definite, f
/// [m]. By block principal pivoting (Kim, Park: Fast Nonnegative Matrix Factorization, 2011), which ends at
/// the optimum: w >= 0, H w - f >= 0 where w is 0, and H w = f elsewhere. Each step takes a Cholesky factor
/// of the positive part. A start from the positive part of a `near` solution (empty: from all) needs fewer
/// steps.
Vector<double> nonnegative_least_squares(const Matrix<double>& A, double ridge, const Vector<double>& f,
                                         const Vector<double>& near, Workers& workers);

}  // namespace kvreplay
