#include "sim/attention.hpp"
#include "sim/compression/compressed_outputs.hpp"

#include <limits>

namespace kvreplay {

OutputChangeReference compressed_change_reference(const HeadGroup<double>& group, RowRange rows,
                                                  const CompressedCache<double>& cache) {
  Matrix<double> keys = group.k, value_change = Matrix<double>::Zero(group.T_all(), group.d_v());
  for (const Index p : positions(cache.kept)) {
    keys.row(p) = cache.k.row(p);
    value_change.row(p) = cache.v.row(p) - group.v.row(p);
  }

  OutputChangeReference result;
  for (Index g = 0; g < group.G(); ++g) {
    result.change.emplace_back(rows.count(), group.d_v());
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Vector<double> before = attention_weights(group, g, attention_logits(group, g, i).z);
      Vector<double> z = attention_logits(group, g, i, keys).z;
      for (Index p = 0; p < group.l; ++p)
        if (cache.kept[p] == 0) z[p] = -std::numeric_limits<double>::infinity();
      const Vector<double> after = attention_weights(group, g, z);
      result.full_sq += (group.v.transpose() * before).squaredNorm();
      // Apart, so that a small change keeps its digits: v' after - v before.
      const Vector<double> change = group.v.transpose() * (after - before) + value_change.transpose() * after;
      result.change_sq += change.squaredNorm();
      result.change.back().row(i - rows.begin) = change.transpose();
    }
  }
  return result;
}

}  // namespace kvreplay
