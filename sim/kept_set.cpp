#include "sim/kept_set.hpp"

#include <algorithm>
#include <functional>
#include <limits>

namespace kvreplay {
namespace {

double nth_largest(double* values, Index size, Index n) {
  std::nth_element(values, values + n - 1, values + size, std::greater<>());
  return values[n - 1];
}

/// The n-th largest value, n from 1. Of many, a sample tells between which two it lies most likely, and one
/// pass without a branch leaves those: a selection by comparisons alone guesses every other one wrong.
double nth_largest(const Vector<double>& values, Index n) {
  constexpr Index kSample = 256, kDoubt = 26;  // three deviations of a rank in the sample
  constexpr double kEnd = std::numeric_limits<double>::infinity();
  const Index size = values.size();
  Vector<double> left(size);
  if (size >= 4 * kSample) {
    double sample[kSample];
    for (Index i = 0; i < kSample; ++i) sample[i] = values[(2 * i + 1) * size / (2 * kSample)];
    const Index rank = n * kSample / size, first = rank - kDoubt, last = rank + kDoubt;
    const double most = first < 1 ? kEnd : nth_largest(sample, kSample, first);
    const double least = last > kSample ? -kEnd : nth_largest(sample, kSample, last);
    Index larger = 0, found = 0;
    for (const double x : values) {
      left[found] = x;
      larger += static_cast<Index>(x > most);
      found += static_cast<Index>(x <= most) & static_cast<Index>(x >= least);
    }
    if (larger < n && n <= larger + found) return nth_largest(left.data(), found, n - larger);
  }
  std::copy_n(values.data(), size, left.data());
  return nth_largest(left.data(), size, n);
}

}  // namespace

Index count(const KeptSet& kept) { return std::count(kept.begin(), kept.end(), std::uint8_t{1}); }

KeptSet largest(const Vector<double>& score, Index keep, Index begin) {
  if (begin > 0) return behind(begin, largest(score.tail(score.size() - begin), keep));
  const Index n = score.size();
  keep = std::clamp<Index>(keep, 0, n);
  KeptSet kept(n, keep == n ? 1 : 0);
  if (keep == 0 || keep == n) return kept;
  const double least = nth_largest(score, keep);
  for (Index p = 0; p < n; ++p) kept[p] = score[p] > least ? 1 : 0;
  Index above = count(kept);
  for (Index p = 0; above < keep && p < n; ++p)
    if (score[p] == least) {
      kept[p] = 1;
      ++above;
    }
  return kept;
}

KeptSet kept_by(const GreedyPath& path, Index l, Index keep, Index begin) {
  KeptSet kept = all_from(begin, l);
  for (Index n = 0; n < l - begin - keep; ++n) kept.at(path.evicted.at(n)) = 0;
  return kept;
}

KeptSet all_from(Index begin, Index l) {
  KeptSet kept(l, 1);
  std::fill_n(kept.begin(), begin, std::uint8_t{0});
  return kept;
}

KeptSet behind(Index begin, const KeptSet& of_candidates) {
  KeptSet kept(begin, 0);
  kept.insert(kept.end(), of_candidates.begin(), of_candidates.end());
  return kept;
}

std::vector<Index> positions(const KeptSet& kept) {
  std::vector<Index> all;
  for (std::size_t p = 0; p < kept.size(); ++p)
    if (kept[p] != 0) all.push_back(static_cast<Index>(p));
  return all;
}

std::vector<Index> evicted_positions(const KeptSet& kept, Index begin) {
  std::vector<Index> all;
  for (auto p = static_cast<std::size_t>(begin); p < kept.size(); ++p)
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
