#include "analysis/conform/rounding.hpp"

#include "sim/gram_sums.hpp"
#include "sim/row_range.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvreplay::conform {
namespace {

/// Variance of one rounding, in squared roundings: an error that is uniformly distributed, of numbers
/// anywhere between two powers of two.
constexpr double kVariance = 0.175;
/// Standard deviations allowed for a sum of many roundings. The largest deviation among some 30,000 scores
/// that torch computed in float16 and bfloat16 was 4.3.
constexpr double kDeviations = 5;
/// Roundings allowed for the sum itself, for the mean over heads and for the final division.
constexpr double kOfSum = 2;
/// Roundings allowed where their average is unknown, relative to the score: for sums and means; for a norm.
constexpr double kRoundings = 8, kOfNorm = 3;
/// Roundings allowed for a cosine, whose terms are at most 1.
constexpr double kOfCosine = 4;
/// Rank differences allowed for LagKV: tokens of equal score among 128.
constexpr double kOfRank = 128;
/// Half the smallest number of float16. A score may lose that much four times: in a weight, in the mean over
/// rows, in pooling and in the mean over heads.
constexpr double kSmallest = 0x1p-25, kLosses = 4;

constexpr Index kTileRows = 64;

struct HeadSums {
  Vector<double> sum, variance;  // [l]
  Matrix<float> queries;         // [l, d]: weighted sums of rows
};

/// The sums of one query head.
HeadSums head_sums(const HeadGroup<double>& group, Index g, RowRange rows, int power,
                   const Matrix<float>& keys, const Matrix<float>& squared_keys) {
  const Index l = group.l;
  const auto scale = static_cast<float>(group.rule.scale);
  HeadSums sums{Vector<double>::Zero(l), Vector<double>::Zero(l), Matrix<float>::Zero(l, group.d())};
  for (Index begin = rows.begin; begin < rows.end; begin += kTileRows) {
    const Index count = std::min<Index>(kTileRows, rows.end - begin);
    const Index end = group.rule.causal ? begin + count : l;
    const Matrix<float> q = group.q[g].middleRows(begin - group.first_query(), count).cast<float>();
    Matrix<float> z = scale * row_products<float>(q, keys.topRows(end));
    if (group.rule.softcap) {
      const auto cap = static_cast<float>(*group.rule.softcap);
      z = (z.array() / cap).tanh() * cap;
    }
    const Matrix<float> inputs =
        scale * scale * row_products<float>(q.cwiseAbs2(), squared_keys.topRows(end));
    Matrix<float> weights = Matrix<float>::Zero(end, count);
    for (Index r = 0; r < count; ++r) {
      const Index first = std::min(group.first_visible(begin + r), end),
                  seen = std::min(group.end_visible(begin + r), end) - first;
      if (seen <= 0) continue;
      const auto logits = z.row(r).segment(first, seen).array();
      const float most = std::max(logits.maxCoeff(), static_cast<float>(group.sink(g)));
      const Eigen::ArrayXf e = (logits - most).exp().transpose();
      const Eigen::ArrayXf a = e / (e.sum() + std::exp(static_cast<float>(group.sink(g)) - most));
      const Eigen::ArrayXf own =
          logits.square().transpose() * 2.F + inputs.row(r).segment(first, seen).array().transpose();
      const float of_others = (a.square() * own).sum();  // through the softmax's denominator
      const Eigen::ArrayXf to_power = power == 1 ? a : Eigen::ArrayXf(a.square());
      sums.sum.segment(first, seen).array() += to_power.cast<double>();
      sums.variance.segment(first, seen).array() +=  // float64: small weights to the fourth power
          power * power * to_power.cast<double>().square() * (own + of_others + 1.F).cast<double>();
      weights.col(r).segment(first, seen) = to_power.matrix();
    }
    sums.queries.topRows(end) +=
        scale * static_cast<float>(power) * row_products<float>(weights, Matrix<float>(q.transpose()));
  }
  return sums;
}

}  // namespace

double rounding_of(Dtype numbers) {
  switch (numbers) {
    case Dtype::f64:
      return 0x1p-48;
    case Dtype::f32:
      return 0x1p-20;
    case Dtype::f16:
      return 0x1p-11;
    case Dtype::bf16:
      return 0x1p-8;
  }
  return 0;
}

Vector<double> attention_deviation(const HeadGroup<double>& group, Index window, int power,
                                   Workers& workers) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const Matrix<float> keys = group.k.topRows(group.l).cast<float>(), squared = keys.cwiseAbs2();
  std::vector<HeadSums> heads(static_cast<std::size_t>(group.G()));
  workers.parallel_for(group.G(),
                       [&](std::ptrdiff_t g) { heads[g] = head_sums(group, g, rows, power, keys, squared); });
  for (Index g = 1; g < group.G(); ++g) {
    heads[0].sum += heads[g].sum;
    heads[0].variance += heads[g].variance;
    heads[0].queries += heads[g].queries;
  }
  const Vector<double> of_keys = heads[0].queries.cwiseProduct(keys).rowwise().squaredNorm().cast<double>(),
                       deviation = (kVariance * (heads[0].variance + of_keys)).cwiseSqrt();
  return (heads[0].sum.array() > 0).select(deviation.array() / heads[0].sum.array(), 0.0);
}

int attention_power(const EvictionRule& rule) {
  if (!rule.metric) return 0;
  const TokenMetricFacts& metric = kTokenMetrics[*rule.metric];
  if (metric.rows != MetricRows::window || metric.heads != OverHeads::sum || metric.of_gradients) return 0;
  return metric.unit == MetricUnit::weight ? 1 : 2;
}

Vector<double> score_tolerance(const HeadGroup<double>& group, const EvictionRule& rule,
                               const Vector<double>& scores, const Vector<double>& deviation,
                               double largest_logit, Dtype numbers) {
  const double rounding = rounding_of(numbers);
  const int power = attention_power(rule);
  const TokenMetricFacts* metric = rule.metric ? &kTokenMetrics[*rule.metric] : nullptr;
  Vector<double> relative = Vector<double>::Constant(scores.size(), kRoundings);
  double absolute = 0;
  if (power > 0)
    relative = kDeviations * deviation.array() + power * kOfSum;
  else if (metric != nullptr && metric->id == TokenMetric::knorm)
    relative.setConstant(kOfNorm);
  else if (metric != nullptr && metric->id == TokenMetric::keydiff)
    relative.setZero(), absolute = kOfCosine * rounding;
  else if (metric != nullptr && metric->id == TokenMetric::lagkv)
    absolute = kOfRank * rounding;
  else if (metric != nullptr && metric->rows != MetricRows::none)
    // A rounding of a logit changes a weight by an equal relative amount, and a squared weight by twice that.
    relative.array() += 2 * (metric->unit == MetricUnit::weight ? 1 : 2) * largest_logit;
  if (numbers == Dtype::f16 && metric != nullptr) {  // underflow of small weights
    const auto values = group.v.topRows(group.l).rowwise();
    if (power > 0 || metric->unit == MetricUnit::weight)
      absolute += kLosses * kSmallest * static_cast<double>(std::min(rule.window, group.T_q()) * group.G()) *
                  (metric->of_values ? 1 + values.squaredNorm().maxCoeff() : 1);
    if (metric->id == TokenMetric::expected_attention)  // scores are means over heads times norms
      absolute += 2 * kSmallest * (1 + values.norm().maxCoeff());
  }
  return rounding * relative.cwiseProduct(scores.cwiseAbs()) +
         Vector<double>::Constant(scores.size(), absolute);
}

}  // namespace kvreplay::conform
