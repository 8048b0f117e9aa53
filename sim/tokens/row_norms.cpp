#include "sim/tokens/row_norms.hpp"

#include "sim/gram_sums.hpp"
#include "sim/quadratic_form.hpp"
#include "sim/simd/panel_gemm.hpp"
#include "sim/tokens/value_rows.hpp"

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

/// Norms of n rows from work(first, rows, squares), a piece of them at a time.
template <class Work>
Vector<double> norms_from(Index n, Workers& workers, const Work& work) {
  constexpr Index kRowsPerItem = 256;
  Vector<double> norms(n);
  workers.parallel_for(div_up(n, kRowsPerItem), [&](Index piece) {
    const Index first = piece * kRowsPerItem, rows = std::min(kRowsPerItem, n - first);
    work(first, rows, norms.data() + first);
    norms.segment(first, rows) = norms.segment(first, rows).cwiseSqrt();
  });
  return norms;
}

template <class T>
Matrix<double> gram_of_projection(const Matrix<T>& wo, Workers& workers) {
  const auto rows_of = [&](Index first, Index count) -> Matrix<double> {
    return wo.middleCols(first, count).transpose().template cast<double>();
  };
  return gram_of_rows(wo.cols(), wo.rows(), rows_of, workers);
}

}  // namespace

Matrix<double> projection_factor(const Matrix<double>& gram) {
  const Eigen::LDLT<Matrix<double>> ldlt(gram);
  const Vector<double> scales = ldlt.vectorD().cwiseMax(0.0).cwiseSqrt();
  Matrix<double> factor = ldlt.matrixL();
  factor *= scales.asDiagonal();
  return ldlt.transpositionsP().transpose() * factor;
}

template <class T>
Vector<double> row_norms(const HeadMatrix<T>& x, Index n, Workers& workers) {
  return norms_from(n, workers, [&](Index first, Index rows, double* squares) {
    value_rows_simd<T>().row_squares(x.data() + first * x.cols(), rows, x.cols(), squares);
  });
}

template <class T>
ProjectedNorms<T>::ProjectedNorms(const Matrix<T>& W, Workers& workers)
    : gram_(gram_of_projection(W, workers)), factor_(square_panels<T>(projection_factor(gram_))) {}

template <class T>
void ProjectedNorms<T>::squares(const T* x, Index rows, double* squares) const {
  constexpr Index W = kPanelWidth<T>;
  const Index d_v = gram_.rows();
  Eigen::Matrix<T, Eigen::Dynamic, W, Eigen::RowMajor> product(rows, W);
  std::fill_n(squares, rows, 0.0);
  for (Index c = 0; c < d_v; c += W) {
    panel_gemm(rows, d_v, x, d_v, factor_.data() + c * d_v, product.data());
    for (Index r = 0; r < rows; ++r) squares[r] += product.row(r).template cast<double>().squaredNorm();
  }
}

template <class T>
double ProjectedNorms<T>::most() const {
  return std::sqrt(std::max(eigenvalues(gram_).maxCoeff(), 0.0));
}

template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers) {
  if (group.wo.empty()) return row_norms(group.v, group.l, workers);
  const ProjectedNorms<T> norms(group.wo[g], workers);
  return norms_from(group.l, workers, [&](Index first, Index rows, double* squares) {
    norms.squares(group.v.data() + first * group.d_v(), rows, squares);
  });
}

template <class T>
Vector<double> projected_value_sums(const HeadGroup<T>& group, Index g, Workers& workers) {
  constexpr Index kRowsPerItem = 64;
  Vector<double> sums(group.l);
  workers.parallel_for(div_up(group.l, kRowsPerItem), [&](Index item) {
    const Index first = item * kRowsPerItem, rows = std::min(kRowsPerItem, group.l - first);
    const Matrix<T> written = group.v.middleRows(first, rows) * group.wo[g];
    sums.segment(first, rows) = written.cwiseAbs().template cast<double>().rowwise().sum();
  });
  return sums;
}

template Vector<double> row_norms(const HeadMatrix<float>&, Index, Workers&);
template Vector<double> row_norms(const HeadMatrix<double>&, Index, Workers&);
template class ProjectedNorms<float>;
template class ProjectedNorms<double>;
template Vector<double> projected_value_norms(const HeadGroup<float>&, Index, Workers&);
template Vector<double> projected_value_norms(const HeadGroup<double>&, Index, Workers&);
template Vector<double> projected_value_sums(const HeadGroup<float>&, Index, Workers&);
template Vector<double> projected_value_sums(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
