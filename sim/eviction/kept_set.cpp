#include "sim/eviction/kept_set.hpp"

#include <algorithm>
#include <numeric>

namespace kvreplay {

Index count(const KeptSet& kept) { return std::count(kept.begin(), kept.end(), std::uint8_t{1}); }

KeptSet largest(const Vector<double>& score, Index keep) {
  std::vector<Index> order(score.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto first = [&](Index a, Index b) { return score[a] != score[b] ? score[a] > score[b] : a < b; };
  keep = std::clamp<Index>(keep, 0, score.size());
  std::nth_element(order.begin(), order.begin() + keep, order.end(), first);
  KeptSet kept(order.size(), 0);
  for (Index n = 0; n < keep; ++n) kept[order[n]] = 1;
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
