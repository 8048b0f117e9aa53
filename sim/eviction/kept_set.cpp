#include "sim/eviction/kept_set.hpp"

#include <algorithm>
#include <functional>

namespace kvreplay {

Index count(const KeptSet& kept) { return std::count(kept.begin(), kept.end(), std::uint8_t{1}); }

KeptSet largest(const Vector<double>& score, Index keep) {
  const Index n = score.size();
  keep = std::clamp<Index>(keep, 0, n);
  KeptSet kept(n, keep == n ? 1 : 0);
  if (keep == 0 || keep == n) return kept;
  std::vector<double> values(score.begin(), score.end());
  std::nth_element(values.begin(), values.begin() + keep - 1, values.end(), std::greater<>());
  const double least = values[keep - 1];
  Index above = 0;
  for (Index p = 0; p < n; ++p) {
    kept[p] = score[p] > least ? 1 : 0;
    above += kept[p];
  }
  for (Index p = 0; above < keep && p < n; ++p)
    if (score[p] == least) {
      kept[p] = 1;
      ++above;
    }
  return kept;
}

std::vector<Index> positions(const KeptSet& kept) {
  std::vector<Index> all;
  for (std::size_t p = 0; p < kept.size(); ++p)
    if (kept[p] != 0) all.push_back(static_cast<Index>(p));
  return all;
}

std::vector<Index> evicted_positions(const KeptSet& kept) {
  std::vector<Index> all;
  for (std::size_t p = 0; p < kept.size(); ++p)
    if (kept[p] == 0) all.push_back(static_cast<Index>(p));
  return all;
}

KeptSet without_recent(const KeptSet& kept, Index recent) {
  KeptSet older = kept;
  for (auto token = older.rbegin(); token != older.rend() && recent > 0; ++token)
    if (*token != 0) {
      *token = 0;
      --recent;
    }
  return older;
}

}  // namespace kvreplay
