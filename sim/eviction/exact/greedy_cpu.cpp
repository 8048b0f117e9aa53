#include "sim/eviction/exact/exact_error.hpp"
#include "sim/eviction/exact/greedy.hpp"

namespace kvreplay {

namespace {

GreedyPath greedy(const HeadGroup<double>& group, const RowGradients<double>* gradients, RowRange rows,
                  Index keep, Workers& workers) {
  ExactError state(group, rows, all_from(group.first_held(), group.l), false, workers, gradients);
  GreedyPath path;
  while (state.kept() > keep) {
    check_stop(workers);
    path.evicted.push_back(state.best_removal().position);
    state.remove(path.evicted.back());
    path.error.push_back(state.error());
  }
  return path;
}

KeptSet exchanged(const HeadGroup<double>& group, const RowGradients<double>* gradients, RowRange rows,
                  KeptSet kept, Workers& workers) {
  const Index keep = count(kept);
  if (keep == 0 || keep == group.held()) return kept;
  ExactError state(group, rows, kept, true, workers, gradients);
  return exchange_from(state, std::move(kept), workers);
}

}  // namespace

GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep, Workers& workers) {
  return greedy(group, nullptr, rows, keep, workers);
}

GreedyPath greedy_loss(const HeadGroup<double>& group, const RowGradients<double>& gradients, RowRange rows,
                       Index keep, Workers& workers) {
  return greedy(group, &gradients, rows, keep, workers);
}

KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start, Workers& workers) {
  return exchanged(group, nullptr, rows, std::move(start), workers);
}

KeptSet exchange_loss(const HeadGroup<double>& group, const RowGradients<double>& gradients, RowRange rows,
                      KeptSet start, Workers& workers) {
  return exchanged(group, &gradients, rows, std::move(start), workers);
}

}  // namespace kvreplay
