#include "sim/tokens/prompt_scores.hpp"

#include "sim/gram_sums.hpp"
#include "sim/kept_set.hpp"
#include "sim/least_squares/row_logits.hpp"
#include "sim/overflow.hpp"
#include "sim/simd/panel.hpp"
#include "sim/tokens/leverage.hpp"
#include "sim/tokens/rkv.hpp"
#include "sim/tokens/row_norms.hpp"
#include "sim/tokens/token_readings.hpp"
#include "sim/tokens/triattention.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using Group = HeadGroup<double>;

/// softmax over a stretch of the standard deviation of each token's channels in the range of the next
/// stretch, [stretch]. A channel that is constant there says nothing.
Vector<double> lag_softmax(const Eigen::Ref<const Matrix<double>>& stretch,
                           const Eigen::Ref<const Matrix<double>>& next) {
  const Eigen::RowVectorXd low = next.colwise().minCoeff(), range = next.colwise().maxCoeff() - low;
  std::vector<Index> channels;
  for (Index c = 0; c < range.size(); ++c)
    if (range[c] > 0) channels.push_back(c);
  const auto n = std::ssize(channels);
  if (n < 2) return Vector<double>::Constant(stretch.rows(), 1.0 / static_cast<double>(stretch.rows()));
  Matrix<double> x(stretch.rows(), n);
  for (Index c = 0; c < n; ++c)
    x.col(c) = (stretch.col(channels[c]).array() - low[channels[c]]) / range[channels[c]];
  x.colwise() -= x.rowwise().mean().eval();
  const Vector<double> deviation = (x.rowwise().squaredNorm() / static_cast<double>(n - 1)).cwiseSqrt();
  const Vector<double> weight = (deviation.array() - deviation.maxCoeff()).exp();
  return weight / weight.sum();
}

Vector<double> lag_kv(const Group& group, Workers& workers) {
  const Index l = group.l, stretches = (l - kScoreSinks) / kLag;
  Vector<double> score = Vector<double>::Ones(l);
  if (l < kScoreSinks + 2 * kLag) {  // too short to rank: the most recent
    for (Index p = kScoreSinks; p < l; ++p)
      score[p] = static_cast<double>(p - kScoreSinks) / static_cast<double>(l - kScoreSinks);
    return score;
  }
  const auto stretch = [&](const HeadMatrix<double>& x, Index n) {
    return x.middleRows(kScoreSinks + n * kLag, kLag);
  };
  workers.parallel_for(stretches - 1, [&](Index n) {
    const Vector<double> both = lag_softmax(stretch(group.k, n), stretch(group.k, n + 1)) +
                                lag_softmax(stretch(group.v, n), stretch(group.v, n + 1));
    if (!both.allFinite()) report_not_finite(group, "a finite lagkv");
    std::vector<double> sorted(both.begin(), both.end());
    std::ranges::sort(sorted);
    for (Index t = 0; t < kLag; ++t) {
      const auto less = std::ranges::lower_bound(sorted, both[t]) - sorted.begin();
      score[kScoreSinks + n * kLag + t] = static_cast<double>(less) / static_cast<double>(kLag);
    }
  });
  return score;
}

/// Each number over the sum of its window's; 0 where that is 0.
Vector<double> local_shares(Vector<double> x) {
  for (Index first = 0; first < x.size(); first += kCurWindow) {
    auto window = x.segment(first, std::min(kCurWindow, x.size() - first));
    if (const double sum = window.sum(); sum > 0) window /= sum;
  }
  return x;
}

Vector<double> cur(const Group& group) {
  const Index l = group.l;
  Vector<double> score = local_shares(group.k.topRows(l).rowwise().squaredNorm())
                             .cwiseProduct(local_shares(group.v.topRows(l).rowwise().squaredNorm()));
  if (const double sum = score.sum(); sum > 0) score /= sum;
  score.head(std::min(kScoreSinks, l)).setOnes();
  return score;
}

/// The main direction of a head's queries of the prompt, towards most of them; 0 where all are 0.
Vector<double> query_filter(const Group& group, Index g, Workers& workers) {
  const Index first = group.first_query(), n = group.l - first;
  const auto rows_of = [&](Index begin, Index count) -> Matrix<double> {
    return group.q[g].middleRows(begin, count);
  };
  const Matrix<double> gram = gram_of_rows(n, group.d(), rows_of, workers);
  if (!gram.allFinite()) report_not_finite(group, "a finite qfilter");
  if (gram.isZero(0)) return Vector<double>::Zero(group.d());
  const Vector<double> direction = main_direction(gram);
  const Vector<double> along = group.q[g].topRows(n) * direction;
  const Index positive = (along.array() > 0).count(), negative = (along.array() < 0).count();
  const bool towards = positive != negative ? positive > negative : along.sum() >= 0;
  return towards ? direction : Vector<double>(-direction);
}

Vector<double> q_filter(const Group& group, Workers& workers) {
  Vector<double> filter = Vector<double>::Zero(group.d());
  for (Index g = 0; g < group.G(); ++g) filter += query_filter(group, g, workers);
  return group.k.topRows(group.l) * (filter / static_cast<double>(group.G()));
}

/// A row's weights on the tokens before the window, averaged over neighbours; their sum stays.
Vector<double> averaged(const Vector<double>& a) {
  const Index n = a.size(), reach = kDefensivePool / 2;
  Vector<double> pooled(n);
  for (Index p = 0; p < n; ++p) {
    const Index first = std::max<Index>(p - reach, 0);
    pooled[p] = a.segment(first, std::min(p + reach + 1, n) - first).sum() / kDefensivePool;
  }
  const double sum = pooled.sum();
  return sum > 0 ? Vector<double>(pooled * (a.sum() / sum)) : pooled;
}

Vector<double> defensive(const Group& group, Index window, Workers& workers) {
  constexpr Index W = kPanelWidth<double>, kRowsAtOnce = 8 * W;
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const Index n = rows.begin;
  Vector<double> most = Vector<double>::Zero(n);
  for (Index begin = rows.begin; begin < rows.end && n > 0; begin += kRowsAtOnce) {
    const RowRange some{begin, std::min(begin + kRowsAtOnce, rows.end)};
    const RowLogits<double> logits = row_logits(group, own_rows(group, some), workers);
    std::vector<Vector<double>> by_row(static_cast<std::size_t>(logits.n));
    workers.parallel_for(logits.n, [&](Index r) {
      const double* panel = logits.log_weight.data() + r / W * group.l * W + r % W;
      Vector<double> a(n);
      for (Index p = 0; p < n; ++p) a[p] = std::exp(panel[p * W]);
      by_row[r] = averaged(a);
    });
    for (const Vector<double>& row : by_row) most = most.cwiseMax(row);
  }
  Vector<double> score = Vector<double>::Zero(group.l);
  if (n == 0) return score;
  score.head(n) = most.cwiseMax(most.mean());
  score.tail(group.l - n).setConstant(score.head(n).maxCoeff());
  return score;
}

Vector<double> kvzip_plus(const Group& group, Workers& workers) {
  const Matrix<double> weights = largest_repeat_attention(group, group.h_ref_norm, workers);
  Vector<double> score = Vector<double>::Zero(group.l);
  for (Index g = 0; g < group.G(); ++g)
    score = score.cwiseMax(weights.row(g).transpose().cwiseProduct(projected_value_norms(group, g, workers)));
  return score;
}

}  // namespace

std::optional<std::string> why_no_kvzip_plus(const Dump& dump) {
  if (const auto why = why_no_second_reading(dump)) return why;
  if (!dump.has(Tensor::h_ref_norm))
    return "the dump has no norms of the hidden states of its second reading (h_ref_norm)";
  if (!dump.projects_values()) return "it needs the output projection alone behind the heads";
  return std::nullopt;
}

Vector<double> prompt_score(TokenMetric metric, const Group& group, Index window, Workers& workers) {
  if (metric == TokenMetric::leverage) return leverage(group, workers);
  if (metric == TokenMetric::lagkv) return lag_kv(group, workers);
  if (metric == TokenMetric::cur) return cur(group);
  if (metric == TokenMetric::qfilter) return q_filter(group, workers);
  if (metric == TokenMetric::kvzip_plus) return kvzip_plus(group, workers);
  if (metric == TokenMetric::defensive) return defensive(group, window, workers);
  if (metric == TokenMetric::rkv) return rkv_scores(group, window, workers);
  if (metric == TokenMetric::triattention) {
    const std::vector<Index> all = positions(KeptSet(static_cast<std::size_t>(group.l), 1));
    return TriAttention<double>(group, workers).scores(all, group.l);
  }
  throw std::invalid_argument("no score of the whole prompt: " + std::string(name_of(metric)));
}

}  // namespace kvreplay
