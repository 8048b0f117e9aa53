#include "viewer/work/cache_fates.hpp"

namespace kvreplay::viewer {

CacheFates cache_fates(const DecodeRun& run) {
  CacheFates fates;
  fates.first_step = run.first_step;
  fates.left_at.assign(run.T, CacheFates::kStays);
  for (std::size_t p = 0; p < run.start.size() && p < fates.left_at.size(); ++p)
    if (run.start[p] == 0) fates.left_at[p] = CacheFates::kWithPrompt;
  for (const DecodeMove& move : run.left) fates.left_at[move.position] = move.step;
  return fates;
}

Held held_at(const CacheFates& fates, Index position, Index step) {
  if (position > fates.first_step + step) return Held::not_there_yet;
  const Index left = fates.left_at[position];
  return left == step ? Held::leaves_now : left < step ? Held::gone : Held::kept;
}

std::size_t bytes_of(const CacheFates& fates) {
  return sizeof(fates) + fates.left_at.capacity() * sizeof(Index);
}

}  // namespace kvreplay::viewer
