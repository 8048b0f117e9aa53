#include "sim/attention.hpp"
#include "sim/eviction/kept_outputs.hpp"

#include <limits>

namespace kvreplay {

OutputChangeReference output_change_reference(const HeadGroup<double>& group, RowRange rows,
                                              const KeptSet& kept) {
  OutputChangeReference result;
  for (Index g = 0; g < group.G(); ++g) {
    result.change.emplace_back(rows.count(), group.d_v());
    for (Index i = rows.begin; i < rows.end; ++i) {
      Vector<double> z = attention_logits(group, g, i).z;
      const Vector<double> before = attention_weights(group, g, z);
      for (Index p = 0; p < group.l; ++p)
        if (kept[p] == 0) z[p] = -std::numeric_limits<double>::infinity();
      const Vector<double> after = attention_weights(group, g, z);
      result.full_sq += (group.v.transpose() * before).squaredNorm();
      const Vector<double> change = group.v.transpose() * (after - before);
      result.change_sq += change.squaredNorm();
      result.change.back().row(i - rows.begin) = change.transpose();
    }
  }
  return result;
}

}  // namespace kvreplay
