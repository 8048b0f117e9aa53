#include "sim/attention.hpp"
#include "sim/eviction/exact/greedy.hpp"

#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

// Weights in long double: where little is evicted, o^M - o is a small difference of two outputs.
using Wide = long double;

struct ReferenceRow {
  Vector<double> z;  ///< [T], hidden -inf
  double sink;
  Matrix<Wide> g;  ///< [S, d_v]; empty: E is the error
};

/// Weights of a row over the positions of `kept` and those >= l, in long double.
Vector<Wide> weights_within(const ReferenceRow& row, const KeptSet& kept) {
  const auto there = [&](Index p) { return p >= std::ssize(kept) || kept[p] != 0; };
  double largest = row.sink;
  for (Index p = 0; p < row.z.size(); ++p)
    if (there(p)) largest = std::max(largest, row.z[p]);
  Vector<Wide> weights = Vector<Wide>::Zero(row.z.size());
  if (largest == -std::numeric_limits<double>::infinity()) return weights;
  Wide sum = std::exp(static_cast<Wide>(row.sink) - largest);
  for (Index p = 0; p < row.z.size(); ++p)
    if (there(p)) sum += weights[p] = std::exp(static_cast<Wide>(row.z[p]) - largest);
  return weights / sum;
}

double error_of(const std::vector<ReferenceRow>& rows, const Matrix<Wide>& v, const KeptSet& kept) {
  const KeptSet all(kept.size(), 1);
  Wide error = 0;
  for (const ReferenceRow& row : rows) {
    const Vector<Wide> change = v.transpose() * (weights_within(row, kept) - weights_within(row, all));
    error += row.g.rows() == 0 ? change.squaredNorm()
                               : (row.g * change).squaredNorm() / (2 * static_cast<Wide>(row.g.rows()));
  }
  return static_cast<double>(error);
}

GreedyPath greedy_path(const HeadGroup<double>& group, const std::vector<ReferenceRow>& rows, Index keep) {
  const Matrix<Wide> v = group.v.cast<Wide>();
  KeptSet kept(static_cast<std::size_t>(group.l), 1);
  GreedyPath path;
  for (Index left = group.held(); left > keep; --left) {
    Index best = -1;
    double least = 0;
    for (Index p = group.first_held(); p < group.l; ++p) {
      std::uint8_t& holds = kept[p];
      if (holds == 0) continue;
      holds = 0;
      const double error = error_of(rows, v, kept);
      holds = 1;
      if (best >= 0 && error > least) continue;  // equal: the higher position goes
      best = p;
      least = error;
    }
    kept[best] = 0;
    path.evicted.push_back(best);
    path.error.push_back(least);
  }
  return path;
}

}  // namespace

GreedyPath greedy_exact_reference(const HeadGroup<double>& group, RowRange rows, Index keep) {
  std::vector<ReferenceRow> all;
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i)
      all.push_back({attention_logits(group, g, i).z, group.sink(g), {}});
  return greedy_path(group, all, keep);
}

GreedyPath greedy_loss_reference(const HeadGroup<double>& group, const RowGradients<double>& gradients,
                                 RowRange rows, Index keep) {
  std::vector<ReferenceRow> all;
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      all.push_back(
          {attention_logits(group, g, i).z, group.sink(g), Matrix<Wide>(gradients.samples, group.d_v())});
      for (Index s = 0; s < gradients.samples; ++s)
        all.back().g.row(s) = gradients.g[g].row(gradients.at(s, i)).cast<Wide>();
    }
  return greedy_path(group, all, keep);
}

}  // namespace kvreplay
