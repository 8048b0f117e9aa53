#pragma once

#include "sim/head_group.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/run.hpp"

#include <fmt/format.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace kvreplay::viewer {

/// A head group to look single cells and tokens up in.
struct ExactHead {
  std::shared_ptr<const HeadGroup<double>> group;
};
inline std::size_t bytes_of(const ExactHead& head) {
  if (!head.group) return sizeof(head);
  return bytes_with(head, head.group->k, head.group->v, head.group->q, head.group->wo);
}

/// Result of `compute(group, job)` on a head in float64; the run must have its dump. The head is cached for
/// the next request about it if it takes at most a quarter of the cache's limit.
template <class Compute>
auto ask_of_exact_head(JobQueue& queue, const std::shared_ptr<const Run>& run, Index layer, Index kv_head,
                       const JobRequest& request, Compute compute) {
  using R = std::invoke_result_t<Compute, const HeadGroup<double>&, JobControl&>;
  if (head_group_bytes(run->shape(), run->shape().d_model > 0, sizeof(double)) > queue.cache_limit() / 4)
    return queue.ask<R>(request, [run, layer, kv_head, compute = std::move(compute)](JobControl& job) {
      return compute(load_head_group<double>(*run->dump(), layer, kv_head), job);
    });
  const JobRequest reading{.key = {run->key(), "float64", layer, kv_head},
                           .title = fmt::format("Reading {} in float64", run->head_text(layer, kv_head))};
  const Answer<ExactHead> head = queue.ask<ExactHead>(reading, [run, layer, kv_head](JobControl&) {
    return ExactHead{
        std::make_shared<const HeadGroup<double>>(load_head_group<double>(*run->dump(), layer, kv_head))};
  });
  if (!head) return Answer<R>{nullptr, head.pending, false, head.error};
  return queue.ask<R>(request, [group = head->group, compute = std::move(compute)](JobControl& job) {
    return compute(*group, job);
  });
}

}  // namespace kvreplay::viewer
