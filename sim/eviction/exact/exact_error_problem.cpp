#include "sim/eviction/exact/exact_error_problem.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

Index padded_to_vectors(Index n) { return div_up(n, kErrorPad) * kErrorPad; }

}  // namespace

ErrorProblem::ErrorProblem(const HeadGroup<double>& group, RowRange asked, const KeptSet& kept_set,
                           const RowGradients<double>* by)
    : l(group.l),
      T(group.T_all()),
      scale(group.rule.scale),
      softcap(group.rule.softcap.value_or(0)),
      width(padded_to_vectors(group.d_v())),
      key_width(padded_to_vectors(group.d())) {
  column.resize(l);
  for (const std::uint8_t wanted : {1, 0}) {
    for (Index p = 0; p < l; ++p) {
      if ((kept_set[p] != 0) != (wanted != 0)) continue;
      column[p] = std::ssize(position);
      position.push_back(p);
    }
    if (wanted != 0) kept = std::ssize(position);
  }
  const Vector<double> mean = group.v.colwise().mean();
  centre.assign(width, 0.0);
  std::copy(mean.data(), mean.data() + mean.size(), centre.begin());
  keys.assign(T * key_width, 0.0);
  values.assign(T * width, 0.0);
  for (Index c = 0; c < T; ++c) {
    const Index p = c < l ? position[c] : c;
    for (Index k = 0; k < group.d(); ++k) keys[c * key_width + k] = group.k(p, k);
    for (Index k = 0; k < group.d_v(); ++k) values[c * width + k] = group.v(p, k) - mean[k];
  }

  std::vector<Index> seeing;
  for (Index i = asked.begin; i < asked.end; ++i)
    if (group.first_visible(i) < std::min(group.end_visible(i), l)) seeing.push_back(i);
  queries.assign(group.G() * std::ssize(seeing) * key_width, 0.0);
  double* query = queries.data();
  for (Index g = 0; g < group.G(); ++g)
    for (const Index i : seeing) {
      ErrorRowState row{};
      row.first = group.first_visible(i);
      row.end = group.end_visible(i);
      rows.push_back(row);
      sink.push_back(group.sink(g));
      for (Index k = 0; k < group.d(); ++k) query[k] = group.q[g](i - group.first_query(), k);
      query += key_width;
    }
  if (by == nullptr) return;
  samples = padded_to_vectors(by->samples);
  gradients.assign(std::ssize(rows) * samples * width, 0.0);
  const double unit = std::sqrt(0.5 / static_cast<double>(by->samples));
  double* row_gradients = gradients.data();
  for (Index g = 0; g < group.G(); ++g)
    for (const Index i : seeing) {
      for (Index s = 0; s < by->samples; ++s)
        for (Index k = 0; k < group.d_v(); ++k)
          row_gradients[s * width + k] = unit * by->g[g](by->at(s, i), k);
      row_gradients += samples * width;
    }
}

}  // namespace kvreplay
