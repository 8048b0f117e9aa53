#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// L2 norms of the first n rows of a matrix, [n].
template <class T>
Vector<double> row_norms(const HeadMatrix<T>& x, Index n, Workers& workers);

/// ||v_p W_O(g)|| of the candidates as query head g writes them, [l]; ||v_p|| where the group has no wo.
template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers);

/// F [d_v, d_v] from W W^T [d_v, d_v], of a projection W: ||v W|| = ||v F||, since F F^T = W W^T. Unlike
/// v (W W^T) v^T the squares of v F do not cancel.
Matrix<double> projection_factor(const Matrix<double>& gram);

}  // namespace kvreplay
