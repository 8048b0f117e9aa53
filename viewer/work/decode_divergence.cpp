#include "viewer/work/decode_divergence.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// The token that the reference holds after a step and the run has lost, the last one that left.
std::optional<Index> lacking(const CacheFates& fates, const CacheFates& of_reference, Index step) {
  const Index end = std::min({fates.first_step + step + 1, static_cast<Index>(std::ssize(fates.left_at)),
                              static_cast<Index>(std::ssize(of_reference.left_at))});
  std::optional<Index> found;
  for (Index p = 0; p < end; ++p) {
    const Index left = fates.left_at[p];
    if (left > step || of_reference.left_at[p] <= step) continue;
    if (!found || left >= fates.left_at[*found]) found = p;
  }
  return found;
}

}  // namespace

std::optional<Divergence> first_divergence(const DecodeRun& run, const CacheFates& fates,
                                           const DecodeRun& reference, const CacheFates& of_reference) {
  const Index steps = std::min(run.steps(), reference.steps());
  for (Index step = 0; step < steps; ++step) {
    if (!(run.error[step] > kDiverges * reference.error[step])) continue;
    if (const auto token = lacking(fates, of_reference, step))
      return Divergence{0, step, *token, fates.left_at[*token]};
  }
  return std::nullopt;
}

std::optional<std::size_t> same_run(const std::vector<DecodeRun>& runs, const DecodeRun& wanted) {
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (runs[r].policy == wanted.policy && runs[r].append_only == wanted.append_only) return r;
  return std::nullopt;
}

std::optional<std::size_t> least_error(const std::vector<DecodeRun>& runs) {
  std::optional<std::size_t> least;
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (!std::isnan(runs[r].mean) && (!least || runs[r].mean < runs[*least].mean)) least = r;
  return least;
}

std::vector<Divergence> divergences(const std::vector<DecodeRun>& runs, const std::vector<CacheFates>& fates,
                                    const std::vector<DecodeRun>& pinned,
                                    const std::vector<CacheFates>& of_pinned) {
  std::vector<Divergence> found;
  if (fates.size() != runs.size()) return found;
  const bool against_pinned = !of_pinned.empty() && of_pinned.size() == pinned.size();
  const std::optional<std::size_t> least = least_error(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto other = against_pinned ? same_run(pinned, runs[r]) : least;
    if (!other || (!against_pinned && *other == r)) continue;
    const std::vector<DecodeRun>& others = against_pinned ? pinned : runs;
    const std::vector<CacheFates>& of_others = against_pinned ? of_pinned : fates;
    if (auto one = first_divergence(runs[r], fates[r], others[*other], of_others[*other])) {
      one->run = r;
      found.push_back(*one);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Divergence& a, const Divergence& b) { return a.step < b.step; });
  return found;
}

}  // namespace kvreplay::viewer
