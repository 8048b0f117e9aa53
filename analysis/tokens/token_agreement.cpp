#include "analysis/tokens/token_agreement.hpp"

#include "sim/tokens/expected_attention.hpp"

#include <optional>

namespace kvreplay {

std::vector<TokenPair> token_pairs(const MetricSet& metrics) {
  std::vector<TokenPair> pairs;
  for (const TokenMetric score : kTokenMetrics.all()) {
    if (!metrics.contains(score) || kTokenMetrics[score].kind == MetricKind::oracle) continue;
    for (const TokenMetric reference : kTokenMetrics.all()) {
      if (!metrics.contains(reference) || kTokenMetrics[reference].kind == MetricKind::score ||
          reference == score)
        continue;
      pairs.push_back({score, reference});
    }
  }
  return pairs;
}

TokenMetrics summed_over_group(const TokenMetrics& metrics) {
  TokenMetrics summed;
  for (const TokenMetric m : kTokenMetrics.all()) {
    const Matrix<double>& all = metrics[m];
    if (all.size() == 0) continue;
    switch (kTokenMetrics[m].heads) {
      case OverHeads::same:
        summed[m] = all.topRows(1);
        break;
      case OverHeads::mean:
        summed[m] = all.colwise().sum() / static_cast<double>(all.rows());
        summed[m]
            .leftCols(kExpectedAttentionFirst)
            .setConstant(summed[m].rightCols(all.cols() - kExpectedAttentionFirst).maxCoeff());
        break;
      case OverHeads::sum:
        summed[m] = all.colwise().sum();
        break;
    }
  }
  return summed;
}

std::vector<Agreement> token_agreements(const TokenMetrics& metrics, const std::vector<TokenPair>& pairs,
                                        Index compared, Workers& workers) {
  std::vector<std::optional<Ranking>> rankings(kTokenMetrics.size());
  workers.parallel_for(std::ssize(kTokenMetrics), [&](Index m) {
    const Matrix<double>& values = metrics.values[m];
    if (values.size() > 0) rankings[m].emplace(std::span(values.data(), static_cast<std::size_t>(compared)));
  });
  std::vector<Agreement> agreements(pairs.size());
  workers.parallel_for(std::ssize(pairs), [&](Index at) {
    const TokenPair& pair = pairs[at];
    agreements[at] = agreement(*rankings[static_cast<std::size_t>(pair.score)],
                               *rankings[static_cast<std::size_t>(pair.reference)], pair.same_unit());
  });
  return agreements;
}

}  // namespace kvreplay
