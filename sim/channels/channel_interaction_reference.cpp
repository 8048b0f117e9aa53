#include "sim/channels/channel_interaction.hpp"

namespace kvreplay {

Matrix<double> channel_interaction_reference(const HeadGroup<double>& group, const std::vector<Index>& keys,
                                             RowRange rows) {
  Matrix<double> H = Matrix<double>::Zero(group.d(), group.d());
  for (const HeadMatrix<double>& q : group.q)
    for (Index i = rows.begin; i < rows.end; ++i)
      for (const Index p : keys) {
        const Vector<double> terms = q.row(i - group.first_query()).cwiseProduct(group.k.row(p)).transpose();
        H += terms * terms.transpose();
      }
  return H;
}

double reconstruction_error_reference(const HeadGroup<double>& group, const std::vector<Index>& keys,
                                      RowRange rows, const std::vector<std::uint8_t>& dropped) {
  double error = 0;
  for (const HeadMatrix<double>& q : group.q)
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Vector<double> whole = q.row(i - group.first_query());
      Vector<double> pruned = whole;
      for (Index c = 0; c < group.d(); ++c)
        if (dropped[c] != 0) pruned[c] = 0;
      for (const Index p : keys) {
        const double change = group.k.row(p).dot(whole) - group.k.row(p).dot(pruned);
        error += change * change;
      }
    }
  return error;
}

}  // namespace kvreplay
