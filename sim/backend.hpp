#pragma once

#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <span>
#include <string_view>
#include <vector>

namespace kvreplay {

template <class T>
struct Cache;
struct DecodeRequest;
template <class T>
struct DecodeReplay;
struct GreedyPath;
template <class T>
struct OutputChanges;
struct PrunableKeys;
struct TokenMetrics;
struct TokenOptions;

/// Which hardware computes; callers never name a twin. This is the CPU; a device overrides what it has
/// kernels for. float64 is the CPU's whatever the backend, but for the exact searches, which are in float64
/// only. Each function is documented where that of its name is.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// "cpu" or "cuda".
  virtual std::string_view name() const { return "cpu"; }
  /// Whether token_metrics() is quicker with the group's numbers as its dump holds them.
  virtual bool reads_stored() const { return false; }
  /// How many calls the CPU took over for want of device memory.
  virtual Index fell_back() const { return 0; }

  /// `stored`: the group's numbers as its dump holds them, less to bring to a device; null where there are
  /// none. The bits do not depend on it.
  virtual TokenMetrics token_metrics(const HeadGroup<float>& group, const TokenOptions& options,
                                     Workers& workers, const StoredGroup* stored = nullptr) const;
  TokenMetrics token_metrics(const HeadGroup<double>& group, const TokenOptions& options, Workers& workers,
                             const StoredGroup* stored = nullptr) const;

  virtual OutputChanges<float> output_changes(const HeadGroup<float>& group, RowRange rows,
                                              std::span<const Cache<float>> caches, bool with_vectors,
                                              Workers& workers) const;
  OutputChanges<double> output_changes(const HeadGroup<double>& group, RowRange rows,
                                       std::span<const Cache<double>> caches, bool with_vectors,
                                       Workers& workers) const;

  virtual Matrix<double> gram_f64(const HeadMatrix<float>& x, const std::vector<Index>& rows,
                                  Workers& workers) const;
  Matrix<double> gram_f64(const HeadMatrix<double>& x, const std::vector<Index>& rows,
                          Workers& workers) const;
  virtual Matrix<double> query_gram(const HeadGroup<float>& group, RowRange rows, Workers& workers) const;
  Matrix<double> query_gram(const HeadGroup<double>& group, RowRange rows, Workers& workers) const;
  virtual Matrix<double> output_interaction(const HeadGroup<float>& group, RowRange rows,
                                            const PrunableKeys& keys, Workers& workers) const;
  Matrix<double> output_interaction(const HeadGroup<double>& group, RowRange rows, const PrunableKeys& keys,
                                    Workers& workers) const;

  virtual GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep,
                                  Workers& workers) const;
  virtual KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start,
                           Workers& workers) const;

  virtual std::vector<DecodeReplay<float>> decode_replays(const HeadGroup<float>& group,
                                                          std::span<const DecodeRequest> runs,
                                                          const std::vector<Matrix<float>>& full,
                                                          Workers& workers) const;
  std::vector<DecodeReplay<double>> decode_replays(const HeadGroup<double>& group,
                                                   std::span<const DecodeRequest> runs,
                                                   const std::vector<Matrix<double>>& full,
                                                   Workers& workers) const;
};

}  // namespace kvreplay
