#include "sim/channels/channel_interaction.hpp"

#include "sim/gram_sums.hpp"

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {

template <class T>
Matrix<double> gram_f64(const HeadMatrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  const Index n = std::ssize(rows), d = x.cols(), per_item = gram_item_rows(n);
  GramSums sums(div_up(n, per_item));
  workers.parallel_for(std::ssize(sums), [&](Index item) {
    std::vector<double>& sum = sums[item];
    sum.resize(gram_blocks_size<double>(d));
    std::vector<double> panels(panels_of<double>(d) * kGramTile * kPanelWidth<double>);
    const Index end = std::min((item + 1) * per_item, n);
    for (Index begin = item * per_item; begin < end; begin += kGramTile) {
      const Index tile = std::min(kGramTile, end - begin);
      for (Index r = 0; r < tile; ++r) {
        const T* row = x.data() + rows[begin + r] * d;
        for (Index c = 0; c < d; ++c) panels[panel_entry<double>(r, c, tile)] = static_cast<double>(row[c]);
      }
      add_gram(panels.data(), tile, d, sum.data());
    }
  });
  return total_gram<double>(sums, d, workers);
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
