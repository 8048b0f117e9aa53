#include "tests/support/random_group.hpp"

#include "sim/head_group.hpp"

#include <cmath>
#include <numbers>
#include <random>

namespace kvreplay::test {
namespace {

/// std::normal_distribution differs between libraries; Box and Muller's does not.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : bits_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }
  Matrix<double> matrix(Index rows, Index columns) {
    Matrix<double> out(rows, columns);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c) out(r, c) = (*this)();
    }
    return out;
  }

 private:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 bits_;
};

RowGradients<double> random_gradients(const GroupSpec& spec, RowRange rows, Index samples, Normal& normal) {
  RowGradients<double> gradients;
  if (rows.count() == 0 || samples == 0) return gradients;
  gradients.rows = rows;
  gradients.samples = samples;
  for (Index g = 0; g < spec.G; ++g)
    gradients.g.emplace_back(spec.gradient_scale * normal.matrix(samples * rows.count(), spec.d_v));
  return gradients;
}

}  // namespace

HeadGroup<double> random_group(const GroupSpec& spec) {
  Normal normal(spec.seed);
  HeadGroup<double> group;
  group.l = spec.l;
  group.rule.scale = spec.logit_std / std::sqrt(static_cast<double>(spec.d));
  group.rule.causal = spec.causal;
  group.rule.sliding_window = spec.sliding_window;
  group.rule.two_sided = spec.two_sided;
  group.rule.softcap = spec.softcap;
  group.rope = spec.rope;
  group.k = normal.matrix(spec.T, spec.d);
  group.v = normal.matrix(spec.T, spec.d_v).array() + spec.value_offset;
  for (Index g = 0; g < spec.G; ++g) {
    group.q.push_back(normal.matrix(spec.T_q.value_or(spec.T), spec.d));
    if (spec.d_model > 0) group.wo.push_back(normal.matrix(spec.d_v, spec.d_model));
    if (spec.sink_logit) group.rule.sink_logit.push_back(*spec.sink_logit + 0.25 * static_cast<double>(g));
  }
  Normal of_repeat(spec.seed + 0x2ead);  // what was drawn before stays as it is
  for (Index g = 0; g < spec.G && spec.repeat > 0; ++g)
    group.q_ref.push_back(of_repeat.matrix(spec.repeat, spec.d));
  Normal of_norms(spec.seed + 0x5709);
  const Matrix<double> norms = of_norms.matrix(spec.repeat, 1).cwiseAbs();
  group.h_ref_norm.assign(group.q_ref.size(), HeadMatrix<double>(norms));
  // A channel in which every query is 1 adds its key's entry, times the scale, to the logit.
  if (spec.logit_shift != 0.0) {
    for (HeadMatrix<double>& q : group.q) q.col(0).setOnes();
    for (HeadMatrix<double>& q : group.q_ref) q.col(0).setOnes();
    group.k.col(0).setConstant(spec.logit_shift / group.rule.scale);
  }
  if (spec.attention_sink) {
    const Index channel = spec.d - 1;
    for (HeadMatrix<double>& q : group.q) q.col(channel).setOnes();
    for (HeadMatrix<double>& q : group.q_ref) q.col(channel).setOnes();
    group.k.col(channel).setZero();
    const double others = std::log(static_cast<double>(spec.T)) + spec.logit_std * spec.logit_std / 2;
    group.k(*spec.attention_sink, channel) =
        (spec.worthless_by.value_or(std::log(1e9)) + others) / group.rule.scale;
    if (spec.worthless_by) group.v.row(*spec.attention_sink).setZero();
  }
  if (spec.zero_token) {
    group.k.row(*spec.zero_token).setZero();
    group.v.row(*spec.zero_token).setZero();
  }
  Normal of_gradients(spec.seed + 0x10ad);  // what was drawn before stays as it is
  const RowRange future = future_rows(group.l, group.T_all(), group.first_query());
  group.g_window = random_gradients(spec, window_rows(group.l, group.first_query(), spec.window_gradients),
                                    spec.samples, of_gradients);
  group.g_future = random_gradients(spec, future, spec.samples, of_gradients);
  group.g_nll = random_gradients(spec, future, spec.samples > 0 ? 1 : 0, of_gradients);
  Normal of_gate(spec.seed + 0x9a7e);
  for (Index g = 0; g < spec.G && spec.gate; ++g)
    group.gate.emplace_back(
        of_gate.matrix(future.count(), spec.d_v).unaryExpr([](double x) { return 1 + std::tanh(3 * x); }));
  return group;
}

Rope rope_of(Rope::Style style, Index rotary_dim, double theta, double attention_factor) {
  Rope rope;
  rope.style = style;
  rope.rotary_dim = rotary_dim;
  rope.attention_factor = attention_factor;
  for (Index j = 0; j < rotary_dim / 2; ++j) {
    rope.inv_freq.push_back(std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(rotary_dim)));
  }
  return rope;
}

HeadGroup<float> to_float(const HeadGroup<double>& group) { return converted<float>(group); }
HeadGroup<double> to_double(const HeadGroup<float>& group) { return converted<double>(group); }

bool joins_heads(TokenMetric metric) {
  return kTokenMetrics[metric].on_host && kTokenMetrics[metric].rows != MetricRows::none;
}

MetricSet available_metrics(const HeadGroup<double>& group) {
  MetricSet metrics = MetricSet::all();
  const bool prompt_queries = group.first_query() < group.l;
  const bool decoding = group.l < group.T_all() && group.first_query() <= group.l;
  const bool rotation = group.rope && group.first_query() <= 4 && group.l > 4;
  for (TokenMetric metric : kTokenMetrics.all()) {
    const bool there = kTokenMetrics[metric].rows == MetricRows::none     ? true
                       : kTokenMetrics[metric].rows == MetricRows::prompt ? rotation
                       : metric == TokenMetric::kvzip                     ? !group.q_ref.empty()
                       : metric == TokenMetric::kvzip_plus
                           ? !group.h_ref_norm.empty() && !group.wo.empty() && group.gate.empty()
                       : kTokenMetrics[metric].kind == MetricKind::oracle ? decoding
                                                                          : prompt_queries;
    const RowRange gradients =
        kTokenMetrics[metric].rows == MetricRows::window ? group.g_window.rows : group.g_future.rows;
    if (!there || (kTokenMetrics[metric].of_gradients && gradients.count() == 0)) metrics.erase(metric);
  }
  return metrics;
}

}  // namespace kvreplay::test
