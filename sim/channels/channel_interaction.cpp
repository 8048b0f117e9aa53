#include "sim/channels/channel_interaction.hpp"

#include <Eigen/Eigenvalues>

#include <cmath>
#include <numeric>

namespace kvreplay {

template <class T>
Matrix<double> query_gram(const HeadGroup<T>& group, Rows rows, Workers& workers) {
  std::vector<Index> at(rows.count());
  std::iota(at.begin(), at.end(), rows.begin - group.first_query());
  Matrix<double> sum = Matrix<double>::Zero(group.d(), group.d());
  for (const Matrix<T>& q : group.q) sum += gram_f64(q, at, workers);
  return sum;
}

double off_diagonal_share(const Matrix<double>& H) {
  double diagonal = 0, others = 0;
  for (Index c = 0; c < H.rows(); ++c)
    for (Index e = 0; e < H.cols(); ++e) (c == e ? diagonal : others) += std::abs(H(c, e));
  return others > 0 ? others / (diagonal + others) : 0.0;
}

Vector<double> spectrum(const Matrix<double>& H) {
  return Eigen::SelfAdjointEigenSolver<Matrix<double>>(H, Eigen::EigenvaluesOnly).eigenvalues().reverse();
}

template Matrix<double> query_gram(const HeadGroup<float>&, Rows, Workers&);
template Matrix<double> query_gram(const HeadGroup<double>&, Rows, Workers&);

}  // namespace kvreplay
