#include "sim/overflow.hpp"
#include "sim/simd/softmax_exp.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvreplay {
namespace {

/// Logits of one row with the tokens that it sees, of every query head: [G, tokens].
template <class T>
Matrix<double> row_logits(const HeadGroup<T>& group, Index row, Workers& workers) {
  constexpr Index kTokensPerItem = 256;
  const Index G = group.G(), d = group.d(), begin = group.first_visible(row);
  const Index n = group.end_visible(row) - begin;
  Matrix<T> queries(G, d);
  for (Index g = 0; g < G; ++g)
    queries.row(g) = static_cast<T>(group.rule.scale) * group.q[g].row(row - group.first_query());

  Matrix<double> logits(G, n);
  workers.parallel_for(div_up(n, kTokensPerItem), [&](Index item) {
    const Index first = item * kTokensPerItem, tokens = std::min(kTokensPerItem, n - first);
    Matrix<T> dots(G, tokens);
    value_rows_simd<T>().row_dots(group.k.data() + (begin + first) * d, queries.data(), G, tokens, d,
                                  dots.data());
    logits.middleCols(first, tokens) = dots.template cast<double>();
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
  Matrix<double> weights = row_logits(group, row, workers);
  std::vector<ColumnTotals> totals(group.G());
  workers.parallel_for(group.G(), [&](Index g) {
    const double sink = static_cast<double>(sink_logit(group, g));
    auto own = weights.row(g);
    const double top = std::max(own.maxCoeff(), sink);
    softmax_exp(own.data(), own.size(), top);
    const double sum = own.sum() + std::exp(sink - top);
    if (!std::isfinite(top) || !std::isfinite(sum))
      report_overflow(group, g, "position " + std::to_string(row));
    totals[g] = empty_totals(group.l, ColumnSet::weights);
    Vector<double>& attention = totals[g][RowScore::attention];
    attention.segment(begin, candidates) = own.head(candidates).transpose() / sum;
    totals[g][RowScore::attention_sq] = attention.cwiseAbs2();
  });
  return totals;
}

template std::vector<ColumnTotals> row_weights(const HeadGroup<float>&, Index, Workers&);
template std::vector<ColumnTotals> row_weights(const HeadGroup<double>&, Index, Workers&);

}  // namespace kvreplay
