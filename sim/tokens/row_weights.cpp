#include "sim/overflow.hpp"
#include "sim/simd/panel_gemm.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvreplay {
namespace {

/// Logits of one row with the tokens that it sees, of every query head: [G, tokens].
template <class T>
Matrix<double> row_logits(const HeadGroup<T>& group, Index row, Workers& workers) {
  constexpr Index W = kPanelWidth<T>, kTokensPerItem = 256;
  const Index G = group.G(), d = group.d(), begin = group.first_visible(row);
  const Index n = group.end_visible(row) - begin;
  const T scale = static_cast<T>(group.rule.scale);
  std::vector<T> queries(panels_of<T>(G) * d * W, T{0});
  for (Index g = 0; g < G; ++g)
    for (Index c = 0; c < d; ++c)
      queries[panel_entry<T>(c, g, d)] = scale * group.q[g](row - group.first_query(), c);

  Matrix<double> logits(G, n);
  workers.parallel_for(div_up(n, kTokensPerItem), [&](Index item) {
    const Index first = item * kTokensPerItem, tokens = std::min(kTokensPerItem, n - first);
    Matrix<T> tile(tokens, W);
    for (Index head = 0; head < G; head += W) {
      const Index heads = std::min(W, G - head);
      panel_gemm_columns(tokens, d, group.k.data() + (begin + first) * d, d, queries.data() + head * d, heads,
                         tile.data());
      logits.block(head, first, heads, tokens) = tile.leftCols(heads).transpose().template cast<double>();
    }
  });
  // Before a cap hides it: a key that is not finite, or an overflow.
  for (Index g = 0; g < G; ++g)
    if (!logits.row(g).allFinite()) report_overflow(group, g, "position " + std::to_string(row));
  if (group.rule.softcap) logits = *group.rule.softcap * (logits / *group.rule.softcap).array().tanh();
  return logits;
}

}  // namespace

template <class T>
std::vector<ColumnTotals> row_weights(const HeadGroup<T>& group, Index row, Workers& workers) {
  const Index begin = group.first_visible(row),
              candidates = std::min(group.end_visible(row), group.l) - begin;
  const Matrix<double> logits = row_logits(group, row, workers);
  std::vector<ColumnTotals> totals(group.G());
  workers.parallel_for(group.G(), [&](Index g) {
    const double sink = static_cast<double>(sink_logit(group, g));
    const double top = std::max(logits.row(g).maxCoeff(), sink);
    const Vector<double> weights = (logits.row(g).array() - top).exp().transpose();
    const double sum = weights.sum() + std::exp(sink - top);
    if (!std::isfinite(top) || !std::isfinite(sum))
      report_overflow(group, g, "position " + std::to_string(row));
    totals[g] = empty_totals(group.l, ColumnSet::weights);
    totals[g].attn.segment(begin, candidates) = weights.head(candidates) / sum;
    totals[g].attn_sq = totals[g].attn.cwiseAbs2();
  });
  return totals;
}

template std::vector<ColumnTotals> row_weights(const HeadGroup<float>&, Index, Workers&);
template std::vector<ColumnTotals> row_weights(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
