#include "analysis/tokens/token_agreement.hpp"

#include "analysis/results/agreement.hpp"
#include "sim/backend.hpp"
#include "sim/tokens/expected_attention.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

namespace kvreplay {
namespace {

template <class Values>
std::size_t extent(const Values& values) {
  return static_cast<std::size_t>(values.size());
}

}  // namespace

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

TokenRankings::TokenRankings(const GivenScores& given, Workers& workers)
    : workers_(workers), metrics_(kTokenMetrics.size()), given_(given.size()) {
  workers_.parallel_for(std::ssize(given_),
                        [&](Index s) { given_[s].emplace(std::span(given[s].data(), extent(given[s]))); });
}

void TokenRankings::rank(const TokenMetrics& metrics) {
  workers_.parallel_for(std::ssize(metrics_), [&](Index m) {
    const Matrix<double>& values = metrics.values[m];
    if (values.size() > 0) metrics_[m].emplace(std::span(values.data(), extent(values)));
  });
}

const Ranking& TokenRankings::of(const TokenScore& score) const {
  return score.metric ? *metrics_[static_cast<std::size_t>(*score.metric)] : *given_[score.given];
}

std::vector<Agreement> TokenRankings::agreements(const std::vector<TokenPair>& pairs,
                                                 const std::vector<Index>& reserves) const {
  std::vector<Agreement> agreements(pairs.size() * reserves.size());
  workers_.parallel_for(std::ssize(pairs), [&](Index at) {
    const TokenPair& pair = pairs[at];
    const Ranking &score = of(pair.score), &reference = of(pair.reference);
    const Agreement plain = agreement(score, reference, pair.same_unit());
    for (std::size_t r = 0; r < reserves.size(); ++r)
      agreements[static_cast<std::size_t>(at) * reserves.size() + r] =
          reserves[r] == 0 ? plain
                           : with_reserve(plain, score, reference, static_cast<std::size_t>(reserves[r]));
  });
  return agreements;
}

std::vector<Agreement> token_agreements(const TokenMetrics& metrics, const std::vector<TokenPair>& pairs,
                                        Workers& workers, const GivenScores& given) {
  TokenRankings rankings(given, workers);
  rankings.rank(metrics);
  return rankings.agreements(pairs, {0});
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
