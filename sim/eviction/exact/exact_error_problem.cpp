#include "sim/eviction/exact/exact_error_problem.hpp"

#include "data/error.hpp"

#include <algorithm>
#include <string>

namespace kvreplay {
namespace {

Index padded_to_vectors(Index n) { return (n + kErrorPad - 1) / kErrorPad * kErrorPad; }

}  // namespace

ErrorProblem::ErrorProblem(const HeadGroup<double>& group, Rows asked, const KeptSet& kept_set)
    : layer(group.layer),
      kv_head(group.kv_head),
      l(group.l),
      T(group.T_all()),
      scale(group.rule.scale),
      softcap(group.rule.softcap.value_or(0)),
      width(padded_to_vectors(group.d_v())),
      key_width(padded_to_vectors(group.d())) {
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  column.resize(at(l));
  for (const std::uint8_t wanted : {1, 0}) {
    for (Index p = 0; p < l; ++p) {
      if ((kept_set[at(p)] != 0) != (wanted != 0)) continue;
      column[at(p)] = std::ssize(position);
      position.push_back(p);
    }
    if (wanted != 0) kept = std::ssize(position);
  }
  const Vector<double> mean = group.v.colwise().mean();
  centre.assign(at(width), 0.0);
  std::copy(mean.data(), mean.data() + mean.size(), centre.begin());
  keys.assign(at(T * key_width), 0.0);
  values.assign(at(T * width), 0.0);
  for (Index c = 0; c < T; ++c) {
    const Index p = c < l ? position[at(c)] : c;
    for (Index k = 0; k < group.d(); ++k) keys[at(c * key_width + k)] = group.k(p, k);
    for (Index k = 0; k < group.d_v(); ++k) values[at(c * width + k)] = group.v(p, k) - mean[k];
  }

  std::vector<Index> seeing;
  for (Index i = asked.begin; i < asked.end; ++i)
    if (group.first_visible(i) < std::min(group.end_visible(i), l)) seeing.push_back(i);
  queries.assign(at(group.G() * std::ssize(seeing) * key_width), 0.0);
  double* query = queries.data();
  for (Index g = 0; g < group.G(); ++g)
    for (const Index i : seeing) {
      ErrorRowState row{};
      row.first = group.first_visible(i);
      row.end = group.end_visible(i);
      rows.push_back(row);
      sink.push_back(group.rule.sink_logit.empty() ? exact_error::kUnseen : group.rule.sink_logit[at(g)]);
      for (Index k = 0; k < group.d(); ++k) query[k] = group.q[at(g)](i - group.first_query(), k);
      query += key_width;
    }
}

void ErrorProblem::report_overflow() const {
  throw InputError("layer " + std::to_string(layer) + ", KV head " + std::to_string(kv_head),
                   "finite squared outputs", "an overflow of float64");
}

}  // namespace kvreplay
