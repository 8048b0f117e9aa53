#pragma once

#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/what_if.hpp"

#include <memory>

namespace kvreplay::test {

/// One head under one setting as a panel asks for it, all steps in turn.
inline viewer::WhatIf computed(const Dump& dump, const viewer::WhatIfSettings& settings, Index layer,
                               Index kv_head, const viewer::UserScore* score = nullptr,
                               const std::vector<viewer::MarkedToken>& marks = {}) {
  const EvictionPlan plan = viewer::what_if_plan(settings, dump, score);
  const DumpShape& shape = dump.shape();
  const auto given = [&](Index g) {
    if (score == nullptr) return GivenScores{};
    return viewer::read_user_score(*score, dump).of_head(layer * shape.n_kv + g, shape.l);
  };
  const auto group = load_head_group<float>(dump, layer, kv_head);
  return on_queue([&](viewer::JobControl& job) {
    viewer::WhatIfLayer of_layer;
    if (viewer::ranks_by_layer(plan))
      of_layer = viewer::what_if_layer(
          plan, dump.shape(),
          [&](Index g) {
            return std::make_shared<const HeadGroup<float>>(load_head_group<float>(dump, layer, g));
          },
          given, job);
    const viewer::WhatIfRanking ranking = viewer::what_if_ranking(
        group, plan, viewer::ranks_by_layer(plan) ? &of_layer : nullptr, given(kv_head), job);
    return viewer::what_if(group, plan, ranking, viewer::what_if_importance(group, job), job, marks);
  });
}

}  // namespace kvreplay::test
