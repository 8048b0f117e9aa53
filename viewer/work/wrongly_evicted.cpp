#include "viewer/work/wrongly_evicted.hpp"

#include "analysis/results/agreement.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>

namespace kvreplay::viewer {

WronglyEvicted wrongly_evicted(std::span<const double> score, std::span<const double> truth,
                               const KeptSet& kept) {
  WronglyEvicted found;
  found.kept = count(kept);
  const Ranking by_truth(truth), by_score(score);
  double sum = 0;
  for (Index place = 0; place < std::min(found.kept, std::ssize(by_truth.order())); ++place) {
    const Index token = by_truth.order()[place];
    if (kept[token] != 0) continue;
    const Index at = score.empty() ? 0 : by_score.place()[token] + 1;
    found.tokens.push_back({token, at, place + 1, truth[token]});
    sum += truth[token];
  }
  found.missed = by_truth.total() > 0 ? sum / by_truth.total() : kNone;
  return found;
}

std::size_t bytes_of(const WronglyEvicted& found) {
  return sizeof(found) + found.tokens.capacity() * sizeof(WronglyEvicted::Token);
}

}  // namespace kvreplay::viewer
