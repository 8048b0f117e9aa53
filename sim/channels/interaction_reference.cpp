#include "sim/attention.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"

#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

/// v_p - o_i. As the weights a_m, the sink's among them, add up to 1, it is the sum of a_m (v_p - v_m): where
/// a_p is nearly 1, the difference itself would keep few digits.
Vector<double> deviation(const HeadGroup<double>& group, const Vector<double>& a, double sink_weight,
                         Index p) {
  Vector<double> sum = sink_weight * group.v.row(p).transpose();  // the sink's value is 0
  for (Index m = 0; m < a.size(); ++m) sum += a[m] * (group.v.row(p) - group.v.row(m)).transpose();
  return sum;
}

/// D_i,c of one row: [d, d_v].
Matrix<double> row_derivatives(const HeadGroup<double>& group, Index g, Index i, const PrunableKeys& keys) {
  const auto head = static_cast<std::size_t>(g);
  LogitRow logits = attention_logits(group, g, i);
  for (Index p = 0; p < group.l; ++p)
    if (keys.cache[p] == 0) logits.z[p] = -std::numeric_limits<double>::infinity();
  const Vector<double> a = attention_weights(group, g, logits.z);
  double sink_weight = 0;
  if (!group.rule.sink_logit.empty()) {
    // The sink column written out as one more logit.
    HeadGroup<double> plain;
    Vector<double> z(a.size() + 1);
    z << logits.z, group.rule.sink_logit[head];
    sink_weight = attention_weights(plain, 0, z)[a.size()];
  }
  Matrix<double> C = Matrix<double>::Zero(group.d(), group.d_v());
  for (Index p = 0; p < group.l; ++p) {
    if (keys.prunable[p] == 0 || a[p] == 0) continue;
    // 1 - tanh^2, which keeps its digits near the cap.
    const double slope =
        group.rule.softcap ? std::pow(std::cosh(logits.raw[p] / *group.rule.softcap), -2) : 1;
    C += a[p] * slope * group.k.row(p).transpose() * deviation(group, a, sink_weight, p).transpose();
  }
  const auto q = group.q[head].row(i - group.first_query());
  return -group.rule.scale * q.transpose().asDiagonal() * C;
}

}  // namespace

std::vector<std::vector<Matrix<double>>> output_derivatives_reference(const HeadGroup<double>& group,
                                                                      RowRange rows,
                                                                      const PrunableKeys& keys) {
  std::vector<std::vector<Matrix<double>>> heads(group.G());
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) heads[g].push_back(row_derivatives(group, g, i, keys));
  return heads;
}

Matrix<double> output_interaction_reference(const HeadGroup<double>& group, RowRange rows,
                                            const PrunableKeys& keys) {
  Matrix<double> sum = Matrix<double>::Zero(group.d(), group.d());
  for (const std::vector<Matrix<double>>& head : output_derivatives_reference(group, rows, keys))
    for (const Matrix<double>& D : head) sum += D * D.transpose();
  return sum;
}

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
