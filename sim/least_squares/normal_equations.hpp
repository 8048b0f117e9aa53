#pragma once

#include "sim/least_squares/row_logits.hpp"

#include <span>

namespace kvreplay {

/// Normal equations X^T X, X^T R and |R|^2 of the least squares problem X D = R.
struct NormalEquations {
  Matrix<double> XX;  ///< [m, m]
  Matrix<double> XR;  ///< [m, columns]
  double RR = 0;

  NormalEquations& operator+=(const NormalEquations& more);
  double mean_diagonal() const { return XX.rows() > 0 ? XX.diagonal().mean() : 0; }
  /// Minimum of |X D - R|^2 over all D.
  double least_error(Workers& workers) const;
  /// |X D - R|^2
  double error(const Matrix<double>& D, Workers& workers) const;
};

/// A matrix or a part of one, whose rows are without gaps.
using RowsOfMatrix = Eigen::Ref<const Matrix<double>, 0, Eigen::OuterStride<>>;
/// a b, in float64 by panel_gemm().
Matrix<double> product(const RowsOfMatrix& a, const RowsOfMatrix& b);

/// Equations for the weights w >= 0 whose weighted masses come closest to those of the whole prompt: X is the
/// weights of `tokens` in the full softmax, R the total weight of all prompt tokens, one column.
template <class T>
NormalEquations mass_equations(const RowLogits<T>& rows, std::span<const Index> tokens, Workers& workers);

/// Equations for the change of values that brings the outputs closest to those over the whole prompt. X is
/// the weights of `tokens`, each counted `weight` times, in the softmax over the kept tokens. R is the
/// difference between the whole prompt's outputs and those with `values` [m, d_v].
template <class T>
NormalEquations value_equations(const RowLogits<T>& rows, std::span<const Index> tokens,
                                const Vector<double>& weight, const Matrix<double>& values, Workers& workers);

/// |R|^2 of value_equations().
template <class T>
double output_change_sq(const RowLogits<T>& rows, std::span<const Index> tokens, const Vector<double>& weight,
                        const Matrix<double>& values, Workers& workers);

}  // namespace kvreplay
