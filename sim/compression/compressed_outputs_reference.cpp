#include "sim/attention.hpp"
#include "sim/compression/compressed_outputs.hpp"

#include <limits>

namespace kvreplay {
namespace {

/// The group's keys as a cache holds them, and what it changes of the values.
struct ReplacedTensors {
  Matrix<double> keys, value_change;
};

ReplacedTensors replaced_by(const HeadGroup<double>& group, const CompressedCache<double>& cache) {
  ReplacedTensors held{group.k, Matrix<double>::Zero(group.T_all(), group.d_v())};
  for (const Index p : positions(cache.kept)) {
    held.keys.row(p) = cache.k.row(p);
    held.value_change.row(p) = cache.v.row(p) - group.v.row(p);
  }
  return held;
}

}  // namespace

std::vector<OutputChangeReference> compressed_change_references(
    const HeadGroup<double>& group, RowRange rows, std::span<const CompressedCache<double>> caches) {
  std::vector<ReplacedTensors> held;
  for (const CompressedCache<double>& cache : caches) held.push_back(replaced_by(group, cache));
  std::vector<OutputChangeReference> results(caches.size());
  for (OutputChangeReference& result : results)
    result.change.assign(group.q.size(), Matrix<double>(rows.count(), group.d_v()));
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Vector<double> before = attention_weights(group, g, attention_logits(group, g, i).z);
      const double full_sq = (group.v.transpose() * before).squaredNorm();
      for (std::size_t n = 0; n < caches.size(); ++n) {
        Vector<double> z = attention_logits(group, g, i, held[n].keys).z;
        for (Index p = 0; p < group.l; ++p)
          if (caches[n].kept[p] == 0)
            z[p] = -std::numeric_limits<double>::infinity();
          else if (caches[n].bias.size() > 0)
            z[p] += caches[n].bias[p];
        const Vector<double> after = attention_weights(group, g, z);
        // Apart, so that a small change keeps its digits: v' after - v before.
        const Vector<double> change =
            group.v.transpose() * (after - before) + held[n].value_change.transpose() * after;
        results[n].full_sq += full_sq;
        results[n].change_sq += change.squaredNorm();
        results[n].change[g].row(i - rows.begin) = change.transpose();
      }
    }
  return results;
}

OutputChangeReference compressed_change_reference(const HeadGroup<double>& group, RowRange rows,
                                                  const CompressedCache<double>& cache) {
  return compressed_change_references(group, rows, {&cache, 1}).front();
}

}  // namespace kvreplay
