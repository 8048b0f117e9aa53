#pragma once

#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/decoding.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvreplay::test {

/// One head's decoding as the dashboard asks for it, all steps in turn.
inline viewer::DecodeView computed(const Dump& dump, const viewer::DecodeSettings& settings, Index layer,
                                   Index kv_head) {
  const viewer::DecodePlan plan = viewer::decode_plan(settings, dump);
  const auto group = load_head_group<float>(dump, layer, kv_head);
  return on_queue([&](viewer::JobControl& job) {
    return viewer::decode_view(group, plan, viewer::decode_outputs(group, job),
                               viewer::decode_starts(group, plan, job), job);
  });
}

/// What a cache holds after the cut that follows step `step` (0 .. steps - 1): [T], 1 where the position is
/// in it. -1: after the prompt, before any decoded position.
inline std::vector<std::uint8_t> cache_after(const viewer::DecodeRun& run, Index step) {
  std::vector<std::uint8_t> cache(run.T, 0);
  std::copy(run.start.begin(), run.start.end(), cache.begin());
  if (step < 0) return cache;
  const Index end = std::min(run.first_step + step + 1, run.T);
  for (Index p = run.l; p < end; ++p) cache[p] = 1;
  for (const DecodeMove& move : run.left) {
    if (move.step > step) break;
    cache[move.position] = 0;
  }
  return cache;
}

}  // namespace kvreplay::test
