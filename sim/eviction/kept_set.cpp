#include "sim/eviction/kept_set.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace kvreplay {
namespace {

/// The n-th largest value, 1 <= n <= their number.
double nth_largest(std::vector<double> values, Index n) {
  constexpr Index kSampled = 15, kMostRounds = 100;
  Index left = std::ssize(values);
  // Each round keeps the side of a pivot that holds it, without a branch for each value.
  for (Index round = 0; left > 4 * kSampled && round < kMostRounds; ++round) {
    std::array<double, kSampled> sample;
    for (Index s = 0; s < kSampled; ++s) sample[s] = values[s * left / kSampled];
    const auto at = sample.begin() + std::min(n * kSampled / left, kSampled - 1);
    std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
    const double pivot = *at;
    Index above = 0, equal = 0, next = 0;
    for (Index i = 0; i < left; ++i) {
      above += values[i] > pivot ? 1 : 0;
      equal += values[i] == pivot ? 1 : 0;
    }
    if (n > above && n <= above + equal) return pivot;
    const bool higher = n <= above;
    for (Index i = 0; i < left; ++i) {
      const double value = values[i];
      values[next] = value;
      next += (higher ? value > pivot : value < pivot) ? 1 : 0;
    }
    if (!higher) n -= above + equal;
    left = next;
  }
  std::nth_element(values.begin(), values.begin() + n - 1, values.begin() + left, std::greater<>());
  return values[n - 1];
}

}  // namespace

Index count(const KeptSet& kept) { return std::count(kept.begin(), kept.end(), std::uint8_t{1}); }

KeptSet largest(const Vector<double>& score, Index keep) {
  const Index n = score.size();
  keep = std::clamp<Index>(keep, 0, n);
  KeptSet kept(n, keep == n ? 1 : 0);
  if (keep == 0 || keep == n) return kept;
  const double least = nth_largest({score.begin(), score.end()}, keep);
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
