#include "analysis/tokens/tensor_agreement.hpp"

#include "analysis/tokens/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace kvreplay {

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
