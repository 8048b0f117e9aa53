#include "data/synth/exact_output.hpp"

#include "data/synth/portable_math.hpp"

#include <algorithm>

namespace kvreplay {

std::vector<double> exact_output(const std::vector<double>& q, const std::vector<double>& k,
                                 const std::vector<double>& v, Index T, Index d, double scale) {
  // Four terms are added at once, into sums that lie side by side: that vectorises without reordering any
  // sum. Zeros fill the last four.
  const Index d4 = (d + 3) / 4 * 4, T4 = (T + 3) / 4 * 4;
  std::vector<double> k_columns(d4 * T4), v_rows(v), weights(static_cast<std::size_t>(T4));
  v_rows.resize(T4 * d);
  for (Index p = 0; p < T; ++p) {
    for (Index c = 0; c < d; ++c) k_columns[c * T4 + p] = k[p * d + c];
  }
  std::vector<double> o(T * d), query(static_cast<std::size_t>(d4));
  for (Index i = 0; i < T; ++i) {
    std::copy_n(q.begin() + i * d, d, query.begin());
    double* const a = weights.data();
    std::fill(a, a + T4, 0.0);
    for (Index c = 0; c < d4; c += 4) {
      const double* const k0 = k_columns.data() + c * T4;
      const double* const k1 = k0 + T4;
      const double* const k2 = k1 + T4;
      const double* const k3 = k2 + T4;
      const double q0 = query[c], q1 = query[c + 1];
      const double q2 = query[c + 2], q3 = query[c + 3];
      for (Index p = 0; p <= i; ++p) a[p] += (q0 * k0[p] + q1 * k1[p]) + (q2 * k2[p] + q3 * k3[p]);
    }
    const double largest = *std::max_element(a, a + i + 1);
    for (Index p = 0; p <= i; ++p) a[p] = portable_exp(scale * (a[p] - largest));
    double sum = 0;
    for (Index p = 0; p <= i; ++p) sum += a[p];
    double* const out = o.data() + i * d;
    for (Index p = 0; p <= i; p += 4) {
      const double* const v0 = v_rows.data() + p * d;
      const double* const v1 = v0 + d;
      const double* const v2 = v1 + d;
      const double* const v3 = v2 + d;
      const double a0 = a[p], a1 = a[p + 1], a2 = a[p + 2], a3 = a[p + 3];
      for (Index c = 0; c < d; ++c) out[c] += (a0 * v0[c] + a1 * v1[c]) + (a2 * v2[c] + a3 * v3[c]);
    }
    for (Index c = 0; c < d; ++c) out[c] /= sum;
  }
  return o;
}

}  // namespace kvreplay
