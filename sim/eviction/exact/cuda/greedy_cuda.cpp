#include "sim/eviction/exact/cuda/exact_error_cuda.hpp"
#include "sim/eviction/exact/exchange_search.hpp"

namespace kvreplay {

GreedyPath greedy_exact_cuda(const HeadGroup<double>& group, Rows rows, Index keep, Workers& workers) {
  if (group.l == 0) return {};
  check_stop(workers);
  DeviceExactError state(group, rows, KeptSet(static_cast<std::size_t>(group.l), 1), false);
  return state.evict(keep, workers);
}

KeptSet exchange_cuda(const HeadGroup<double>& group, Rows rows, KeptSet start, Workers& workers) {
  const Index keep = count(start);
  if (keep == 0 || keep == group.l) return start;
  check_stop(workers);
  DeviceExactError state(group, rows, start, true);
  return exchange_from(state, std::move(start), workers);
}

}  // namespace kvreplay
