#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <utility>

namespace kvreplay {

const Backend& cpu_backend() {
  static const Backend backend;
  return backend;
}

template <class T>
TokenMetrics BackendOf<T>::token_metrics(const HeadGroup<T>& group, const TokenOptions& options,
                                         Workers& workers, const StoredGroup* /*stored*/) const {
  return token_metrics_cpu(group, options, workers);
}

template <class T>
OutputChanges<T> BackendOf<T>::output_changes(const HeadGroup<T>& group, RowRange rows,
                                              std::span<const Cache<T>> caches, bool with_vectors,
                                              Workers& workers) const {
  return kvreplay::output_changes(group, rows, caches, with_vectors, workers);
}

template <class T>
Matrix<double> BackendOf<T>::output_interaction(const HeadGroup<T>& group, RowRange rows,
                                                const PrunableKeys& keys, Workers& workers) const {
  return kvreplay::output_interaction(group, rows, keys, workers);
}

template <class T>
std::vector<DecodeReplay<T>> BackendOf<T>::decode_replays(const HeadGroup<T>& group,
                                                          std::span<const DecodeRequest> runs,
                                                          const std::vector<Matrix<T>>& full,
                                                          Workers& workers) const {
  return kvreplay::decode_replays(group, runs, full, workers);
}

template class BackendOf<float>;
template class BackendOf<double>;

GreedyPath Backend::greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep,
                                 Workers& workers) const {
  return kvreplay::greedy_exact(group, rows, keep, workers);
}

KeptSet Backend::exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start,
                          Workers& workers) const {
  return kvreplay::exchange(group, rows, std::move(start), workers);
}

}  // namespace kvreplay
