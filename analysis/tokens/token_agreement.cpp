#include "analysis/tokens/token_agreement.hpp"

#include "analysis/tokens/agreement.hpp"
#include "sim/tokens/expected_attention.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

namespace kvreplay {

std::vector<TokenPair> token_pairs(const MetricSet& metrics, const std::vector<std::string>& given) {
  std::vector<TokenScore> scores;
  std::vector<TokenMetric> references;
  for (const TokenMetric m : kTokenMetrics.all()) {
    if (!metrics.contains(m)) continue;
    if (kTokenMetrics[m].kind != MetricKind::oracle) scores.emplace_back(m);
    if (kTokenMetrics[m].kind != MetricKind::score) references.push_back(m);
  }
  for (std::size_t s = 0; s < given.size(); ++s) scores.emplace_back(given[s], s);
  std::vector<TokenPair> pairs;
  for (const TokenScore& score : scores)
    for (const TokenMetric reference : references)
      if (score.metric != reference) pairs.push_back({score, reference});
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
      case OverHeads::max:
        summed[m] = all.colwise().maxCoeff();
        break;
      case OverHeads::sum:
        summed[m] = all.colwise().sum();
        break;
    }
  }
  return summed;
}

std::vector<Agreement> token_agreements(const TokenMetrics& metrics, const std::vector<TokenPair>& pairs,
                                        Index compared, Workers& workers, const GivenScores& given) {
  const Index own = std::ssize(kTokenMetrics);
  std::vector<std::optional<Ranking>> rankings(kTokenMetrics.size() + given.size());
  workers.parallel_for(std::ssize(rankings), [&](Index m) {
    const double* const values = m < own ? metrics.values[m].data() : given[m - own].data();
    if (m >= own || metrics.values[m].size() > 0)
      rankings[m].emplace(std::span(values, static_cast<std::size_t>(compared)));
  });
  std::vector<Agreement> agreements(pairs.size());
  workers.parallel_for(std::ssize(pairs), [&](Index at) {
    const TokenPair& pair = pairs[at];
    const std::size_t score = pair.score.metric ? static_cast<std::size_t>(*pair.score.metric)
                                                : kTokenMetrics.size() + pair.score.given;
    agreements[at] =
        agreement(*rankings[score], *rankings[static_cast<std::size_t>(pair.reference)], pair.same_unit());
  });
  return agreements;
}

TensorAgreement tensor_agreement(const HeadGroup<float>& group, TokenOptions options, const Compute& tensor) {
  constexpr Index kRows = 128;
  options.window = std::min(options.window, kRows);
  const TokenMetrics got = tensor.backend.token_metrics(group, options, tensor.workers),
                     want = cpu_backend().token_metrics(group, options, tensor.workers);
  TensorAgreement worst;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    const Matrix<double>&a = got[metric], &b = want[metric];
    if (b.size() == 0 || !b.allFinite() || !a.allFinite()) continue;
    const double norm = b.norm();
    if (norm > 0) worst.difference = std::max(worst.difference, (a - b).norm() / norm);
    const auto values = [](const Matrix<double>& m) {
      return std::span<const double>(m.data(), static_cast<std::size_t>(m.size()));
    };
    const double rank = agreement(values(a), values(b), false)[AgreementFigure::spearman];
    if (!std::isnan(rank)) worst.spearman = std::min(worst.spearman, rank);
  }
  return worst;
}

}  // namespace kvreplay
