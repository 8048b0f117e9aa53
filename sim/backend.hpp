#pragma once

#include "sim/channels/output_interaction.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <span>
#include <string_view>
#include <vector>

// Which hardware computes. Callers name a backend and never a twin; each function is documented where its
// twins are.

namespace kvreplay {

struct DecodeRequest;
template <class T>
struct DecodeReplay;

/// The CPU. A device's backend overrides what it has kernels for. float64 runs on the CPU whatever the
/// backend, but for the exact searches, which are in float64 only.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// "cpu" or "cuda".
  virtual std::string_view name() const { return "cpu"; }
  /// How many calls the CPU took over for want of device memory.
  virtual Index fell_back() const { return 0; }

  /// `stored`: the group's numbers as its dump holds them, less to bring to a device; null where there are
  /// none. The bits do not depend on it.
  virtual TokenMetrics token_metrics(const HeadGroup<float>& group, const TokenOptions& options,
                                     Workers& workers, const StoredGroup* stored = nullptr) const;
  TokenMetrics token_metrics(const HeadGroup<double>& group, const TokenOptions& options,
                             Workers& workers) const;

  virtual OutputChanges<float> output_changes(const HeadGroup<float>& group, Rows rows,
                                              std::span<const KeptSet> sets, bool with_vectors,
                                              Workers& workers) const;
  OutputChanges<double> output_changes(const HeadGroup<double>& group, Rows rows,
                                       std::span<const KeptSet> sets, bool with_vectors,
                                       Workers& workers) const;

  virtual Matrix<double> gram_f64(const Matrix<float>& x, const std::vector<Index>& rows,
                                  Workers& workers) const;
  Matrix<double> gram_f64(const Matrix<double>& x, const std::vector<Index>& rows, Workers& workers) const;

  virtual Matrix<double> query_gram(const HeadGroup<float>& group, Rows rows, Workers& workers) const;
  Matrix<double> query_gram(const HeadGroup<double>& group, Rows rows, Workers& workers) const;

  virtual Matrix<double> output_interaction(const HeadGroup<float>& group, Rows rows,
                                            const PrunableKeys& keys, Workers& workers) const;
  Matrix<double> output_interaction(const HeadGroup<double>& group, Rows rows, const PrunableKeys& keys,
                                    Workers& workers) const;

  virtual GreedyPath greedy_exact(const HeadGroup<double>& group, Rows rows, Index keep,
                                  Workers& workers) const;
  virtual KeptSet exchange(const HeadGroup<double>& group, Rows rows, KeptSet start, Workers& workers) const;

  virtual std::vector<DecodeReplay<float>> decode_replays(const HeadGroup<float>& group,
                                                          std::span<const DecodeRequest> runs,
                                                          const std::vector<Matrix<float>>& full,
                                                          Workers& workers) const;
  std::vector<DecodeReplay<double>> decode_replays(const HeadGroup<double>& group,
                                                   std::span<const DecodeRequest> runs,
                                                   const std::vector<Matrix<double>>& full,
                                                   Workers& workers) const;
};

const Backend& cpu_backend();

}  // namespace kvreplay
