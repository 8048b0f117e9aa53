#include "sim/attention.hpp"
#include "sim/cache/cache_outputs.hpp"

#include <limits>

namespace kvreplay {

std::vector<OutputChangeReference> output_change_references(const HeadGroup<double>& group, RowRange rows,
                                                            std::span<const Cache<double>> caches) {
  struct Held {
    Matrix<double> keys, value_change;  // empty: the group's own, and none
  };
  std::vector<Held> held(caches.size());
  std::vector<OutputChangeReference> results(caches.size());
  for (std::size_t n = 0; n < caches.size(); ++n) {
    const Cache<double>& cache = caches[n];
    if (cache.k.size() > 0 || !cache.pruned.empty()) held[n].keys = keys_held(group, cache);
    if (cache.v.size() > 0) {
      held[n].value_change = Matrix<double>::Zero(group.T_all(), group.d_v());
      for (const Index p : positions(cache.kept))
        held[n].value_change.row(p) = cache.v.row(p) - group.v.row(p);
    }
    results[n].change.assign(group.q.size(), Matrix<double>(rows.count(), group.d_v()));
  }
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Vector<double> whole = attention_logits(group, g, i).z;
      const Vector<double> before = attention_weights(group, g, whole);
      const double full_sq = (group.v.transpose() * before).squaredNorm();
      for (std::size_t n = 0; n < caches.size(); ++n) {
        const Cache<double>& cache = caches[n];
        Vector<double> z = held[n].keys.size() > 0 ? attention_logits(group, g, i, held[n].keys).z : whole;
        for (Index p = 0; p < group.l; ++p)
          if (cache.kept[p] == 0 || !cache.pages.reads(i, p))
            z[p] = -std::numeric_limits<double>::infinity();
          else if (cache.bias.size() > 0)
            z[p] += cache.bias[p];
        const Vector<double> after = attention_weights(group, g, z);
        // Apart, so that a small change keeps its digits: v' after - v before.
        Vector<double> change = group.v.transpose() * (after - before);
        if (cache.v.size() > 0) change += held[n].value_change.transpose() * after;
        results[n].full_sq += full_sq;
        results[n].change_sq += change.squaredNorm();
        results[n].change[g].row(i - rows.begin) = change.transpose();
      }
    }
  return results;
}

OutputChangeReference output_change_reference(const HeadGroup<double>& group, RowRange rows,
                                              const Cache<double>& cache) {
  return output_change_references(group, rows, {&cache, 1}).front();
}

}  // namespace kvreplay
