#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <vector>

namespace kvreplay {

/// L2 norms of the first n rows of a matrix, [n].
template <class T>
Vector<double> row_norms(const HeadMatrix<T>& x, Index n, Workers& workers);

/// ||v_p W_O(g)|| of the candidates as query head g writes them, [l]; ||v_p|| where the group has no wo.
template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers);

/// ||v_p W_O(g)||_1 of the candidates, [l], in float64: l d_v d_model products in T.
template <class T>
Vector<double> projected_value_sums(const HeadGroup<T>& group, Index g, Workers& workers);

/// Norms of vectors behind a projection W [d_v, d_model].
template <class T>
class ProjectedNorms {
 public:
  ProjectedNorms(const Matrix<T>& W, Workers& workers);

  /// ||x W||^2 of the rows of x [rows, d_v]: products in T, sums of squares in float64.
  void squares(const T* x, Index rows, double* squares) const;
  /// Largest factor by which W makes a vector longer: its largest singular value.
  double most() const;

 private:
  Matrix<double> gram_;    // W W^T
  std::vector<T> factor_;  // projection_factor() of it, [panels][d_v][W]
};

/// F [d_v, d_v] from W W^T [d_v, d_v], of a projection W: ||v W|| = ||v F||, since F F^T = W W^T. Unlike
/// v (W W^T) v^T the squares of v F do not cancel.
Matrix<double> projection_factor(const Matrix<double>& gram);

}  // namespace kvreplay
