#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/tokens/token_readings.hpp"

#include <utility>

namespace kvreplay {

const Backend& cpu_backend() {
  static const Backend backend;
  return backend;
}

TokenMetrics Backend::token_metrics(const HeadGroup<float>& group, const TokenOptions& options,
                                    Workers& workers, const StoredGroup* /*stored*/) const {
  return finished_metrics(read_metrics_cpu(group, options, workers), group, options, workers);
}

OutputChanges<float> Backend::output_changes(const HeadGroup<float>& group, RowRange rows,
                                             std::span<const Cache<float>> caches, bool with_vectors,
                                             Workers& workers) const {
  return kvreplay::output_changes(group, rows, caches, with_vectors, workers);
}

Matrix<double> Backend::gram_f64(const HeadMatrix<float>& x, const std::vector<Index>& rows,
                                 Workers& workers) const {
  return kvreplay::gram_f64(x, rows, workers);
}

Matrix<double> Backend::query_gram(const HeadGroup<float>& group, RowRange rows, Workers& workers) const {
  return kvreplay::query_gram(group, rows, workers);
}

Matrix<double> Backend::output_interaction(const HeadGroup<float>& group, RowRange rows,
                                           const PrunableKeys& keys, Workers& workers) const {
  return kvreplay::output_interaction(group, rows, keys, workers);
}

std::vector<DecodeReplay<float>> Backend::decode_replays(const HeadGroup<float>& group,
                                                         std::span<const DecodeRequest> runs,
                                                         const std::vector<Matrix<float>>& full,
                                                         Workers& workers) const {
  return kvreplay::decode_replays(group, runs, full, workers);
}

TokenMetrics Backend::token_metrics(const HeadGroup<double>& group, const TokenOptions& options,
                                    Workers& workers, const StoredGroup* /*stored*/) const {
  return finished_metrics(read_metrics_cpu(group, options, workers), group, options, workers);
}

OutputChanges<double> Backend::output_changes(const HeadGroup<double>& group, RowRange rows,
                                              std::span<const Cache<double>> caches, bool with_vectors,
                                              Workers& workers) const {
  return kvreplay::output_changes(group, rows, caches, with_vectors, workers);
}

Matrix<double> Backend::gram_f64(const HeadMatrix<double>& x, const std::vector<Index>& rows,
                                 Workers& workers) const {
  return kvreplay::gram_f64(x, rows, workers);
}

Matrix<double> Backend::query_gram(const HeadGroup<double>& group, RowRange rows, Workers& workers) const {
  return kvreplay::query_gram(group, rows, workers);
}

Matrix<double> Backend::output_interaction(const HeadGroup<double>& group, RowRange rows,
                                           const PrunableKeys& keys, Workers& workers) const {
  return kvreplay::output_interaction(group, rows, keys, workers);
}

std::vector<DecodeReplay<double>> Backend::decode_replays(const HeadGroup<double>& group,
                                                          std::span<const DecodeRequest> runs,
                                                          const std::vector<Matrix<double>>& full,
                                                          Workers& workers) const {
  return kvreplay::decode_replays(group, runs, full, workers);
}

GreedyPath Backend::greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep,
                                 Workers& workers) const {
  return kvreplay::greedy_exact(group, rows, keep, workers);
}

KeptSet Backend::exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start,
                          Workers& workers) const {
  return kvreplay::exchange(group, rows, std::move(start), workers);
}

}  // namespace kvreplay
