#include "sim/attention.hpp"
#include "sim/kept_set.hpp"
#include "sim/tokens/leverage.hpp"
#include "sim/tokens/prompt_scores.hpp"
#include "sim/tokens/rkv.hpp"
#include "sim/tokens/triattention.hpp"

#include <Eigen/SVD>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

/// Score term that lagkv gives token t of the stretch that begins at `first`, for its row of x: exp of the
/// standard deviation over channels, before the division by the stretch's sum.
double lag_term(const HeadMatrix<double>& x, Index first, Index t) {
  std::vector<double> scaled;
  for (Index c = 0; c < x.cols(); ++c) {
    double low = x(first + kLag, c), high = low;
    for (Index p = first + kLag; p < first + 2 * kLag; ++p) {
      low = std::min(low, x(p, c));
      high = std::max(high, x(p, c));
    }
    if (high > low) scaled.push_back((x(first + t, c) - low) / (high - low));
  }
  if (scaled.size() < 2) return 1;
  double mean = 0, square = 0;
  for (const double s : scaled) mean += s / static_cast<double>(scaled.size());
  for (const double s : scaled) square += (s - mean) * (s - mean);
  return std::exp(std::sqrt(square / static_cast<double>(scaled.size() - 1)));
}

Vector<double> lagkv_by_definition(const HeadGroup<double>& group) {
  Vector<double> score = Vector<double>::Ones(group.l);
  const bool ranks = group.l >= kScoreSinks + 2 * kLag;
  for (Index p = kScoreSinks; p < group.l && !ranks; ++p)
    score[p] = static_cast<double>(p - kScoreSinks) / static_cast<double>(group.l - kScoreSinks);
  for (Index first = kScoreSinks; ranks && first + 2 * kLag <= group.l; first += kLag) {
    std::vector<double> key(kLag), value(kLag);
    double keys = 0, values = 0;
    for (Index t = 0; t < kLag; ++t) {
      keys += key[t] = lag_term(group.k, first, t);
      values += value[t] = lag_term(group.v, first, t);
    }
    const auto both = [&](Index t) { return key[t] / keys + value[t] / values; };
    for (Index t = 0; t < kLag; ++t) {
      Index less = 0;
      for (Index other = 0; other < kLag; ++other) less += both(other) < both(t) ? 1 : 0;
      score[first + t] = static_cast<double>(less) / kLag;
    }
  }
  return score;
}

Vector<double> cur_by_definition(const HeadGroup<double>& group) {
  const auto share = [&](const HeadMatrix<double>& x, Index p) {
    const Index first = p / kCurWindow * kCurWindow, end = std::min(first + kCurWindow, group.l);
    double sum = 0;
    for (Index m = first; m < end; ++m) sum += x.row(m).squaredNorm();
    return sum > 0 ? x.row(p).squaredNorm() / sum : 0;
  };
  Vector<double> product(group.l);
  for (Index p = 0; p < group.l; ++p) product[p] = share(group.k, p) * share(group.v, p);
  const double sum = product.sum();
  for (Index p = 0; p < group.l; ++p) product[p] = p < kScoreSinks ? 1 : sum > 0 ? product[p] / sum : 0;
  return product;
}

Vector<double> qfilter_by_definition(const HeadGroup<double>& group) {
  Vector<double> score = Vector<double>::Zero(group.l);
  for (Index g = 0; g < group.G(); ++g) {
    const Matrix<double> queries = group.q[g].topRows(group.l - group.first_query());
    if (queries.isZero(0)) continue;
    const Eigen::JacobiSVD<Matrix<double>> svd(queries, Eigen::ComputeThinU | Eigen::ComputeThinV);
    Index votes = 0;
    for (const double u : svd.matrixU().col(0)) votes += u > 0 ? 1 : u < 0 ? -1 : 0;
    const double sign = votes != 0 ? static_cast<double>(votes) : svd.matrixU().col(0).sum();
    const Vector<double> filter = (sign < 0 ? -1.0 : 1.0) * svd.matrixV().col(0);
    for (Index p = 0; p < group.l; ++p)
      score[p] += group.k.row(p).dot(filter) / static_cast<double>(group.G());
  }
  return score;
}

Vector<double> defensive_by_definition(const HeadGroup<double>& group, Index window) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const Index n = rows.begin;
  Vector<double> score = Vector<double>::Zero(group.l);
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Vector<double> a = attention_weights(group, g, attention_logits(group, g, i).z);
      std::vector<double> mean(static_cast<std::size_t>(n), 0.0);
      double before = 0, after = 0;
      for (Index p = 0; p < n; ++p) {
        for (Index m = p - 2; m <= p + 2; ++m) mean[p] += m >= 0 && m < n ? a[m] / 5 : 0;
        before += a[p];
        after += mean[p];
      }
      for (Index p = 0; p < n && after > 0; ++p) score[p] = std::max(score[p], mean[p] * (before / after));
    }
  if (n == 0) return score;
  const double floor = score.head(n).sum() / static_cast<double>(n);
  double largest = 0;
  for (Index p = 0; p < n; ++p) largest = std::max(largest, score[p] = std::max(score[p], floor));
  for (Index p = n; p < group.l; ++p) score[p] = largest;
  return score;
}

Vector<double> kvzip_plus_by_definition(const HeadGroup<double>& group) {
  Vector<double> score = Vector<double>::Zero(group.l);
  for (Index g = 0; g < group.G(); ++g)
    for (Index r = 0; r < group.R_ref(); ++r) {
      const double h = group.h_ref_norm[g](r, 0);
      const Vector<double> a = repeat_weights(group, g, r);
      for (Index p = 0; p < group.l && h > 0; ++p)
        score[p] = std::max(score[p], a[p] * (group.v.row(p) * group.wo[g]).norm() / h);
    }
  return score;
}

}  // namespace

Vector<double> prompt_score_reference(TokenMetric metric, const HeadGroup<double>& group, Index window) {
  if (metric == TokenMetric::leverage) return leverage_reference(group);
  if (metric == TokenMetric::lagkv) return lagkv_by_definition(group);
  if (metric == TokenMetric::cur) return cur_by_definition(group);
  if (metric == TokenMetric::qfilter) return qfilter_by_definition(group);
  if (metric == TokenMetric::kvzip_plus) return kvzip_plus_by_definition(group);
  if (metric == TokenMetric::defensive) return defensive_by_definition(group, window);
  if (metric == TokenMetric::rkv) return rkv_reference(group, window);
  if (metric == TokenMetric::triattention) {
    const std::vector<Index> all = positions(KeptSet(static_cast<std::size_t>(group.l), 1));
    return triattention_reference(group, all, group.l);
  }
  throw std::invalid_argument("no score of the whole prompt: " + std::string(name_of(metric)));
}

}  // namespace kvreplay
