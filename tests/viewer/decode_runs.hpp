#pragma once

#include "tests/viewer/on_desk.hpp"
#include "viewer/questions/decoding.hpp"

namespace kvreplay::test {

/// One head's decoding as the dashboard asks for it, all steps in turn.
inline viewer::DecodeView computed(const Dump& dump, const viewer::DecodeSettings& settings, Index layer,
                                   Index kv_head) {
  const viewer::DecodePlan plan = viewer::decode_plan(settings, dump);
  const auto group = load_head_group<float>(dump, layer, kv_head);
  return on_desk([&](viewer::JobControl& job) {
    return viewer::decode_view(group, plan, viewer::decode_outputs(group, job),
                               viewer::decode_starts(group, plan, job), job);
  });
}

}  // namespace kvreplay::test
