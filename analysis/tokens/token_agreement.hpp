#pragma once

#include "analysis/tokens/agreement.hpp"
#include "sim/backend.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// One comparison of token metrics: how well `score` follows `reference`.
struct TokenPair {
  TokenMetric score, reference;
  bool same_unit() const {
    return kTokenMetrics[score].unit == MetricUnit::squared_output &&
           kTokenMetrics[reference].unit == MetricUnit::squared_output;
  }
  /// The row set of the reference: "window" or "future".
  std::string_view rows() const {
    return kTokenMetrics[reference].kind == MetricKind::oracle ? "future" : "window";
  }
};

/// Every score and exact error against every exact error and oracle among `metrics`, none with itself, in
/// canonical order.
std::vector<TokenPair> token_pairs(const MetricSet& metrics);

/// What the query heads make together (OverHeads) of [G, l] over the group: [1, l]. Leaves
/// [1, l] as it is.
TokenMetrics summed_over_group(const TokenMetrics& metrics);

/// The agreement of every pair over the first `compared` candidates of one head's [1, l] metrics. Ranks every
/// metric once.
std::vector<Agreement> token_agreements(const TokenMetrics& metrics, const std::vector<TokenPair>& pairs,
                                        Index compared, Workers& workers);

/// How near --precision tensor comes to float32: over the metrics of one head, the largest
/// ||tensor - f32|| / ||f32||, and the least Spearman correlation (1 where a metric is the same for all
/// candidates).
struct TensorAgreement {
  double difference = 0;
  double spearman = 1;
};

/// Of the head's last window rows, 128 at most, and of its oracles; float32 is the CPU's.
TensorAgreement tensor_agreement(const HeadGroup<float>& group, TokenOptions options, const Compute& tensor);

}  // namespace kvreplay
