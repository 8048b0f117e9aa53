#include "sim/attention.hpp"
#include "sim/eviction/kept_outputs.hpp"

#include <limits>

namespace kvreplay {

std::vector<OutputChangeReference> output_change_references(const HeadGroup<double>& group, RowRange rows,
                                                            std::span<const KeptSet> sets) {
  std::vector<OutputChangeReference> results(sets.size());
  for (OutputChangeReference& result : results)
    result.change.assign(group.q.size(), Matrix<double>(rows.count(), group.d_v()));
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Vector<double> z = attention_logits(group, g, i).z;
      const Vector<double> before = attention_weights(group, g, z);
      const double full_sq = (group.v.transpose() * before).squaredNorm();
      for (std::size_t s = 0; s < sets.size(); ++s) {
        Vector<double> left = z;
        for (Index p = 0; p < group.l; ++p)
          if (sets[s][p] == 0) left[p] = -std::numeric_limits<double>::infinity();
        const Vector<double> after = attention_weights(group, g, left);
        const Vector<double> change = group.v.transpose() * (after - before);
        results[s].full_sq += full_sq;
        results[s].change_sq += change.squaredNorm();
        results[s].change[g].row(i - rows.begin) = change.transpose();
      }
    }
  return results;
}

OutputChangeReference output_change_reference(const HeadGroup<double>& group, RowRange rows,
                                              const KeptSet& kept) {
  return output_change_references(group, rows, {&kept, 1}).front();
}

}  // namespace kvreplay
