#pragma once

#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_facts.hpp"

#include <array>
#include <bitset>
#include <cstddef>
#include <optional>
#include <string>

namespace kvreplay {

class MetricSet {
 public:
  MetricSet() = default;
  MetricSet(std::initializer_list<TokenMetric> metrics) {
    for (TokenMetric m : metrics) insert(m);
  }
  static MetricSet all() {
    MetricSet set;
    set.bits_.set();
    return set;
  }
  /// All metrics that are computed by default.
  static MetricSet standard() {
    MetricSet set = all();
    for (const TokenMetricFacts& facts : kTokenMetrics)
      if (facts.on_request) set.erase(facts.id);
    return set;
  }
  void insert(TokenMetric m) { bits_.set(static_cast<std::size_t>(m)); }
  void erase(TokenMetric m) { bits_.reset(static_cast<std::size_t>(m)); }
  bool contains(TokenMetric m) const { return bits_.test(static_cast<std::size_t>(m)); }
  bool empty() const { return bits_.none(); }
  bool operator==(const MetricSet&) const = default;

 private:
  std::bitset<kTokenMetrics.size()> bits_;
};

struct TokenOptions {
  Index window = 32;            ///< w
  bool per_query_head = false;  ///< [G, l] instead of the sum over the group
  MetricSet metrics = MetricSet::standard();
};

/// Metrics of one head group, each [1, l], or [G, l] per query head (knorm and keydiff then repeat their only
/// row). Metrics that were not requested are empty matrices, and so are metrics of gradients or of a second
/// reading where the group has none.
struct TokenMetrics {
  std::array<Matrix<double>, kTokenMetrics.size()> values;
  Matrix<double>& operator[](TokenMetric m) { return values[static_cast<std::size_t>(m)]; }
  const Matrix<double>& operator[](TokenMetric m) const { return values[static_cast<std::size_t>(m)]; }
};

/// Why a dump cannot give a metric (no decoding steps, no RoPE, no queries, ...), as one clause; nothing
/// where it can.
std::optional<std::string> why_unavailable(TokenMetric metric, const Dump& dump);
/// Metrics of MetricSet::standard() that the dump can give.
MetricSet metrics_of(const Dump& dump);

/// First position whose query a metric reads, with a window of w rows; T where it reads none.
Index first_row_of(TokenMetric metric, const DumpShape& shape, Index w);
/// Parts of a head group that a metric reads on the CPU. Where checked_keys is false, a key that is not
/// finite ends in an InputError of the metric.
HeadParts parts_of(TokenMetric metric, const DumpShape& shape, Index w);

/// Reference: float64, directly from the definitions; exact errors by recomputing the attention for every
/// changed token. Cost O(G |rows| l^2 d_v). Shares no formula with the fast versions. The requested metrics
/// must be available.
TokenMetrics token_metrics_reference(const HeadGroup<double>& group, const TokenOptions& options);

/// Fast CPU version, in T throughout (sums over long runs in float64): two passes over tiles of K Q^T. Cost 6
/// G |rows| l d flops and memory O(l d) beside 32 MiB of logits. Where 32 rows have more logits than that, 8
/// G |rows| l d flops and O(l d + G |rows| d). The same bytes for any number of threads.
template <class T>
TokenMetrics token_metrics_cpu(const HeadGroup<T>& group, const TokenOptions& options, Workers& workers);

/// Fast CUDA version, on the calling thread's device (sim/cuda/runtime.hpp): the same passes in float32 (or
/// as `products` says), long sums in float64, the same bits in every run. Throws DeviceError and
/// OutOfDeviceMemory besides the exceptions of the CPU version.
TokenMetrics token_metrics_cuda(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                                Products products = Products::f32);

}  // namespace kvreplay
