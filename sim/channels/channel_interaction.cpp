#include "sim/channels/channel_interaction.hpp"

#include "sim/gram_sums.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {
namespace {

std::vector<Index> rows_at(RowRange rows, Index first_query) {
  std::vector<Index> at(rows.count());
  std::iota(at.begin(), at.end(), rows.begin - first_query);
  return at;
}

}  // namespace

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
  const std::vector<Index> at = rows_at(rows, group.first_query());
  Matrix<double> sum = Matrix<double>::Zero(group.d(), group.d());
  for (const HeadMatrix<T>& q : group.q) sum += gram_f64(q, at, workers);
  return sum;
}

template <class T>
Vector<double> gram_diagonal(const HeadMatrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  constexpr Index kRowsPerItem = 256;
  const Index n = std::ssize(rows), d = x.cols(), items = div_up(n, kRowsPerItem);
  Matrix<double> sums = Matrix<double>::Zero(items, d);
  workers.parallel_for(items, [&](Index item) {
    const Index first = item * kRowsPerItem;
    Vector<double> sum = Vector<double>::Zero(d);  // on no other item's cache line
    value_rows_simd<T>().add_squared_rows(x.data(), rows.data() + first, std::min(kRowsPerItem, n - first), d,
                                          sum.data());
    sums.row(item) = sum.transpose();
  });
  return sums.colwise().sum().transpose();
}

template <class T>
Vector<double> query_gram_diagonal(const HeadGroup<T>& group, RowRange rows, Workers& workers) {
  const std::vector<Index> at = rows_at(rows, group.first_query());
  Vector<double> sum = Vector<double>::Zero(group.d());
  for (const HeadMatrix<T>& q : group.q) sum += gram_diagonal(q, at, workers);
  return sum;
}

double off_diagonal_share(const Matrix<double>& H) {
  double diagonal = 0, others = 0;
  for (Index c = 0; c < H.rows(); ++c)
    for (Index e = 0; e < H.cols(); ++e) (c == e ? diagonal : others) += std::abs(H(c, e));
  return others > 0 ? others / (diagonal + others) : 0.0;
}

Vector<double> spectrum(const Matrix<double>& H) { return eigenvalues(H).reverse(); }

template Matrix<double> gram_f64(const HeadMatrix<float>&, const std::vector<Index>&, Workers&);
template Matrix<double> gram_f64(const HeadMatrix<double>&, const std::vector<Index>&, Workers&);
template Vector<double> gram_diagonal(const HeadMatrix<float>&, const std::vector<Index>&, Workers&);
template Vector<double> gram_diagonal(const HeadMatrix<double>&, const std::vector<Index>&, Workers&);
template decltype(query_gram_diagonal<float>) query_gram_diagonal<float>;
template decltype(query_gram_diagonal<double>) query_gram_diagonal<double>;
template decltype(query_gram<float>) query_gram<float>;
template decltype(query_gram<double>) query_gram<double>;

}  // namespace kvreplay
