#include "sim/channels/channel_interaction.hpp"

#include "sim/gram_sums.hpp"

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {

template <class T>
Matrix<double> gram_f64(const HeadMatrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  const Index n = std::ssize(rows), d = x.cols();
  return gram_of_rows(
      n, d, gram_item_rows(n),
      [&](Index first, Index count, double* panels) {
        for (Index r = 0; r < count; ++r) {
          const T* row = x.data() + rows[first + r] * d;
          for (Index c = 0; c < d; ++c)
            panels[panel_entry<double>(r, c, count)] = static_cast<double>(row[c]);
        }
      },
      workers);
}

template <class T>
Matrix<double> query_gram(const HeadGroup<T>& group, RowRange rows, Workers& workers) {
  std::vector<Index> at(rows.count());
  std::iota(at.begin(), at.end(), rows.begin - group.first_query());
  Matrix<double> sum = Matrix<double>::Zero(group.d(), group.d());
  for (const HeadMatrix<T>& q : group.q) sum += gram_f64(q, at, workers);
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

template Matrix<double> gram_f64(const HeadMatrix<float>&, const std::vector<Index>&, Workers&);
template Matrix<double> gram_f64(const HeadMatrix<double>&, const std::vector<Index>&, Workers&);
template decltype(query_gram<float>) query_gram<float>;
template decltype(query_gram<double>) query_gram<double>;

}  // namespace kvreplay
