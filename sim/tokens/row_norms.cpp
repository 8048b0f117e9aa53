#include "sim/tokens/row_norms.hpp"

#include "sim/quadratic_form.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

/// Norms of n rows from work(first, rows, squares), a piece of them at a time.
template <class Work>
Vector<double> norms_from(Index n, Workers& workers, const Work& work) {
  constexpr Index kRowsPerItem = 256;
  Vector<double> squares(n);
  workers.parallel_for(div_up(n, kRowsPerItem), [&](Index piece) {
    const Index first = piece * kRowsPerItem, rows = std::min(kRowsPerItem, n - first);
    work(first, rows, squares.data() + first);
  });
  return squares.cwiseMax(0.0).cwiseSqrt();
}

}  // namespace

template <class T>
Vector<double> row_norms(const HeadMatrix<T>& x, Index n, Workers& workers) {
  return norms_from(n, workers, [&](Index first, Index rows, double* squares) {
    value_rows_simd<T>().row_squares(x.data() + first * x.cols(), rows, x.cols(), squares);
  });
}

template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers) {
  if (group.wo.empty()) return row_norms(group.v, group.l, workers);
  const Matrix<double> wo = group.wo[g].template cast<double>();
  const QuadraticForm<double> square(wo * wo.transpose());  // ||v W||^2 = v (W W^T) v^T
  return norms_from(group.l, workers, [&](Index first, Index rows, double* squares) {
    const Matrix<double> v = group.v.middleRows(first, rows).template cast<double>();
    Eigen::Map<Vector<double>>(squares, rows) = square.at_rows(v.data(), rows);
  });
}

template Vector<double> row_norms(const HeadMatrix<float>&, Index, Workers&);
template Vector<double> row_norms(const HeadMatrix<double>&, Index, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<float>&, Index, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
