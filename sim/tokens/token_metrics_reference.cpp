#include "sim/attention.hpp"
#include "sim/gradient_rows.hpp"
#include "sim/tokens/entry_map.hpp"
#include "sim/tokens/loss_totals.hpp"
#include "sim/tokens/prompt_scores.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "sim/tokens/token_readings.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// Every token metric and every term of one from its definition (METRICS.md), in float64. Shapes: G query
// heads read one KV head; keys [T, d], values [T, d_v]; metrics are [G, l] here and reduced over the group at
// the end.

namespace kvreplay {
namespace {

using Group = HeadGroup<double>;

constexpr Index kFirst = 4;              // expected attention: first positions, left out and ranked above all
constexpr Index kFutureRotations = 512;  // expected attention: positions whose rotations are averaged
constexpr double kEpsilon = 0.02;

/// sum of w_m v_m over all m but p.
Vector<double> sum_without(const HeadMatrix<double>& v, const Vector<double>& w, Index p) {
  Vector<double> sum = Vector<double>::Zero(v.cols());
  for (Index m = 0; m < w.size(); ++m) {
    if (m != p && w[m] != 0.0) sum += w[m] * v.row(m).transpose();
  }
  return sum;
}

/// v_p - o_i. Where p holds most of the weight both are nearly equal; (1 - a_ip) v_p less what the others add
/// to o_i is the same, with 1 - a_ip from the weights of the others, a sink column's included.
Vector<double> value_less_output(const Group& group, Index g, const Vector<double>& z,
                                 const Vector<double>& a, const Vector<double>& o, Index p) {
  const Vector<double> v_p = group.v.row(p).transpose();
  if (a[p] <= 0.5) return v_p - o;
  double weight_of_others = 0.0;
  if (!group.rule.sink_logit.empty()) {
    // a_ip > 1/2: z_ip lies within ln 2 of the largest logit or above it, so this quotient cannot overflow
    weight_of_others = a[p] * std::exp(group.rule.sink_logit[g] - z[p]);
  }
  for (Index m = 0; m < a.size(); ++m) {
    if (m != p) weight_of_others += a[m];
  }
  return weight_of_others * v_p - sum_without(group.v, a, p);
}

/// v_p - o_i as sum over the columns m, a sink's among them, of a_im (v_p - v_m): nothing cancels where p
/// holds the row.
Vector<double> value_less_output_in_parts(const Group& group, Index g, const Vector<double>& z,
                                          const Vector<double>& a, Index p) {
  const Vector<double> v_p = group.v.row(p).transpose();
  Vector<double> difference = Vector<double>::Zero(group.d_v());
  for (Index m = 0; m < a.size(); ++m)
    if (a[m] > 0.0 && m != p) difference += a[m] * (v_p - group.v.row(m).transpose());
  if (group.rule.sink_logit.empty()) return difference;
  Index top = 0;
  a.maxCoeff(&top);
  const double sink = group.rule.sink_logit[g];
  // 1 for a sink so far above all logits that none has any weight
  const double sink_weight = a[top] > 0.0 ? a[top] * std::exp(sink - z[top]) : 1.0;
  return difference + sink_weight * v_p;
}

/// z_raw dz/dz_raw: z itself without a soft cap. d/dx of c tanh(x/c) is 1 / cosh^2(x/c).
double logit_times_slope(const AttentionRule& rule, double raw) {
  if (!rule.softcap) return raw;
  const double cosh = std::cosh(raw / *rule.softcap);
  return raw / (cosh * cosh);
}

/// Term of one row in a token's metric, by the metric's definition: from the token's weight a, its logit z as
/// the Taylor scores use it, its value v, and v less the row's output.
double term_of(TokenMetric metric, double a, double z, const Vector<double>& v,
               const Vector<double>& v_less_o) {
  if (metric == TokenMetric::attn) return a;
  if (metric == TokenMetric::attn_sq) return a * a;
  if (metric == TokenMetric::value) return a * a * v.squaredNorm();
  if (metric == TokenMetric::key) return a * z * (a * z) * v_less_o.squaredNorm();
  if (metric == TokenMetric::joint) return a * a * (v + z * v_less_o).squaredNorm();
  throw std::invalid_argument("no sum of terms: " + std::string(name_of(metric)));
}
/// True if a metric is a sum over the window's rows.
constexpr bool has_terms(const TokenMetricFacts& facts) {
  return facts.decoding.rank == CacheRank::row_sums && facts.kind == MetricKind::score;
}

/// The change whose exact error a metric is.
std::optional<TokenChange> change_of(TokenMetric metric) {
  if (metric == TokenMetric::exact_value) return TokenChange::zero_value;
  if (metric == TokenMetric::exact_key) return TokenChange::zero_key;
  if (metric == TokenMetric::exact_joint) return TokenChange::zero_key_and_value;
  if (metric == TokenMetric::exact_remove) return TokenChange::remove;
  return std::nullopt;
}

/// The scores of head g that has_terms() of: sums over the window rows.
void add_taylor_scores(const Group& group, Index g, RowRange window, TokenMetrics& out) {
  for (Index i = window.begin; i < window.end; ++i) {
    const LogitRow logits = attention_logits(group, g, i);
    const Vector<double> a = attention_weights(group, g, logits.z);
    const Vector<double> o = group.v.transpose() * a;
    const Index end = std::min(group.l, group.end_visible(i));
    for (Index p = group.first_visible(i); p < end; ++p) {
      const Vector<double> v_p = group.v.row(p).transpose();
      const Vector<double> v_less_o = value_less_output(group, g, logits.z, a, o, p);
      const double z = logit_times_slope(group.rule, logits.raw[p]);
      for (const TokenMetricFacts& facts : kTokenMetrics)
        if (has_terms(facts)) out[facts.id](g, p) += term_of(facts.id, a[p], z, v_p, v_less_o);
    }
  }
}

/// knorm and keydiff of the KV head, [1, l].
void set_key_scores(const Group& group, Matrix<double>& knorm, Matrix<double>& keydiff) {
  Vector<double> anchor = Vector<double>::Zero(group.d());
  for (Index p = 0; p < group.l; ++p) {
    const double norm = group.k.row(p).norm();
    knorm(0, p) = -norm;
    if (norm > 0.0) anchor += group.k.row(p).transpose() / norm;
  }
  anchor /= static_cast<double>(group.l);
  for (Index p = 0; p < group.l; ++p) {
    const double norms = group.k.row(p).norm() * anchor.norm();
    keydiff(0, p) = norms > 0.0 ? -group.k.row(p).dot(anchor) / norms : 0.0;
  }
}

/// Rotation of a vector at one position: each pair (x, y) of channels becomes (x cos - y sin, y cos + x sin),
/// channels from rotary_dim on stay.
struct Rotation {
  const Rope& rope;
  Vector<double> cos, sin;  // [rotary_dim / 2]

  static Rotation at(const Rope& rope, double position) {
    const Index pairs = rope.rotary_dim / 2;
    Rotation rotation{rope, Vector<double>(pairs), Vector<double>(pairs)};
    for (Index j = 0; j < pairs; ++j) {
      const double angle = position * rope.inv_freq[j];
      rotation.cos[j] = rope.attention_factor * std::cos(angle);
      rotation.sin[j] = rope.attention_factor * std::sin(angle);
    }
    return rotation;
  }
  static Rotation mean_of(const Rope& rope, Index begin, Index end) {
    Rotation mean = at(rope, static_cast<double>(begin));
    for (Index position = begin + 1; position < end; ++position) {
      const Rotation rotation = at(rope, static_cast<double>(position));
      mean.cos += rotation.cos;
      mean.sin += rotation.sin;
    }
    mean.cos /= static_cast<double>(end - begin);
    mean.sin /= static_cast<double>(end - begin);
    return mean;
  }
  /// The other way round: what `at` did to a query, attention factor included, is undone.
  static Rotation undoing(const Rope& rope, double position) {
    Rotation rotation = at(rope, -position);
    const double factor = rope.attention_factor * rope.attention_factor;
    rotation.cos /= factor;
    rotation.sin /= factor;
    return rotation;
  }
  Vector<double> operator*(const Vector<double>& in) const {
    Vector<double> out = in;
    const Index pairs = rope.rotary_dim / 2;
    for (Index j = 0; j < pairs; ++j) {
      const bool half = rope.style == Rope::Style::half;
      const Index x = half ? j : 2 * j;
      const Index y = half ? j + pairs : 2 * j + 1;
      out[x] = in[x] * cos[j] - in[y] * sin[j];
      out[y] = in[y] * cos[j] + in[x] * sin[j];
    }
    return out;
  }
};

/// Softmax over candidates 4..l-1 of head g's expected logit e_p = scale k_p . R mu + scale^2/2 k_p^T R Sigma
/// R^T k_p; with x_i the un-rotated queries, k_p^T R Sigma R^T k_p is the mean of (k_p . R (x_i - mu))^2.
Vector<double> expected_weights(const Group& group, Index g, const Rope& rope) {
  const Index queries = group.l - kFirst;
  Matrix<double> x(queries, group.d());
  for (Index r = 0; r < queries; ++r) {
    const Index i = kFirst + r;
    const Vector<double> query = group.q[g].row(i - group.first_query()).transpose();
    x.row(r) = (Rotation::undoing(rope, static_cast<double>(i)) * query).transpose();
  }
  const Vector<double> mu = x.colwise().mean().transpose();
  const Rotation R = Rotation::mean_of(rope, group.l, group.l + kFutureRotations);
  for (Index r = 0; r < queries; ++r) x.row(r) = (R * (x.row(r).transpose() - mu)).transpose();
  const Vector<double> R_mu = R * mu;

  Vector<double> e(queries);
  for (Index c = 0; c < queries; ++c) {
    const Vector<double> k_p = group.k.row(kFirst + c).transpose();
    const double variance = (x * k_p).squaredNorm() / static_cast<double>(queries);
    e[c] = group.rule.scale * k_p.dot(R_mu) + group.rule.scale * group.rule.scale / 2 * variance;
  }
  e = (e.array() - e.maxCoeff()).exp();
  return e / e.sum();
}

void set_expected_attention(const Group& group, bool per_query_head, Matrix<double>& out) {
  if (!group.rope || group.l <= kFirst || group.first_query() > kFirst) {
    throw std::invalid_argument(
        "expected_attention was asked for without RoPE, prompt queries or candidates");
  }
  Matrix<double> weights(group.G(), group.l - kFirst);
  for (Index g = 0; g < group.G(); ++g) weights.row(g) = expected_weights(group, g, *group.rope).transpose();
  if (!per_query_head) weights = weights.colwise().mean().eval();
  out.resize(weights.rows(), group.l);
  for (Index p = kFirst; p < group.l; ++p) {
    out.col(p) = (weights.col(p - kFirst).array() + kEpsilon) * group.v.row(p).norm();
  }
  // the first tokens share the largest value: with ties to the lower position they rank above all
  for (Index r = 0; r < out.rows(); ++r) {
    out.row(r).head(kFirst).setConstant(out.row(r).tail(group.l - kFirst).maxCoeff());
  }
}

/// Exact errors of head g by recomputing the attention of every row without each of the candidates.
void add_exact_errors(const Group& group, Index g, RowRange rows, TokenChange change, Matrix<double>& out) {
  std::vector<Index> candidates(group.l);
  std::iota(candidates.begin(), candidates.end(), Index{0});
  for (Index i = rows.begin; i < rows.end; ++i) {
    out.row(g) += brute_force_errors(group, g, i, change, candidates).transpose();
  }
}

void set_oracle_importance(const Group& group, Index g, RowRange future, Matrix<double>& out) {
  Vector<double> norms(group.l);
  const auto set_norms = [&](const auto& written) {
    for (Index p = 0; p < group.l; ++p)
      norms[p] = group.wo.empty() ? written(p).norm() : (written(p) * group.wo[g]).norm();
  };
  set_norms([&](Index p) { return group.v.row(p); });
  for (Index i = future.begin; i < future.end; ++i) {
    if (!group.gate.empty())
      set_norms([&](Index p) { return group.v.row(p).cwiseProduct(group.gate_row(g, i)); });
    const Vector<double> a = attention_weights(group, g, attention_logits(group, g, i).z);
    for (Index p = 0; p < group.l; ++p) out(g, p) = std::max(out(g, p), a[p] * norms[p]);
  }
}

/// kvzip of head g: the largest weight over the rows of the second reading.
void set_kvzip(const Group& group, Index g, Matrix<double>& out) {
  for (Index r = 0; r < group.q_ref[g].rows(); ++r)
    out.row(g) = out.row(g).cwiseMax(repeat_weights(group, g, r).transpose());
}

}  // namespace

TokenMetrics token_metrics_reference(const Group& group, const TokenOptions& options) {
  const MetricSet& asked = options.metrics;
  const RowRange window = window_rows(group.l, group.first_query(), options.window);
  const RowRange future = future_rows(group.l, group.T_all(), group.first_query());

  TokenMetrics all;
  for (Matrix<double>& values : all.values) values.setZero(group.G(), group.l);
  const bool taylor = std::any_of(kTokenMetrics.begin(), kTokenMetrics.end(), [&](const auto& facts) {
    return asked.contains(facts.id) && facts.rows == MetricRows::window && facts.kind == MetricKind::score &&
           !facts.on_host;
  });
  const auto exact = [&](TokenMetric metric, Index g, RowRange rows, TokenChange change) {
    if (asked.contains(metric)) add_exact_errors(group, g, rows, change, all[metric]);
  };
  const auto loss = [&](TokenMetric metric, Index g, const RowGradients<double>& gradients, RowRange rows) {
    if (asked.contains(metric))
      all[metric].row(g) = loss_totals_reference(group, g, gradients, rows).transpose();
  };
  for (Index g = 0; g < group.G(); ++g) {
    if (taylor) add_taylor_scores(group, g, window, all);
    if (asked.contains(TokenMetric::caote) || asked.contains(TokenMetric::fastcaote)) {
      const HeadMatrix<double> values(group.v.topRows(group.l));
      const CaoteScores scores = caote_reference(all[TokenMetric::attn].row(g).transpose(), values);
      all[TokenMetric::caote].row(g) = scores.caote.transpose();
      all[TokenMetric::fastcaote].row(g) = scores.fastcaote.transpose();
    }
    for (const TokenMetric metric : kTokenMetrics.all())
      if (const auto change = change_of(metric)) exact(metric, g, window, *change);
    exact(TokenMetric::oracle_next, g, {future.begin, std::min(future.begin + 1, future.end)},
          TokenChange::remove);
    exact(TokenMetric::oracle_future, g, future, TokenChange::remove);
    loss(TokenMetric::exact_loss, g, group.g_window, loss_rows(window, group.g_window.rows));
    loss(TokenMetric::oracle_loss, g, group.g_future, loss_rows(future, group.g_future.rows));
    if (asked.contains(TokenMetric::oracle_importance)) {
      set_oracle_importance(group, g, future, all[TokenMetric::oracle_importance]);
    }
    if (asked.contains(TokenMetric::kvzip) && !group.q_ref.empty())
      set_kvzip(group, g, all[TokenMetric::kvzip]);
  }
  if (!options.per_query_head) {
    const Matrix<double> largest = all[TokenMetric::kvzip].colwise().maxCoeff();
    for (Matrix<double>& values : all.values) values = values.colwise().sum().eval();
    all[TokenMetric::kvzip] = largest;
  }

  const Index rows = options.per_query_head ? group.G() : 1;
  Matrix<double> knorm(1, group.l);
  Matrix<double> keydiff(1, group.l);
  set_key_scores(group, knorm, keydiff);
  all[TokenMetric::knorm] = knorm.replicate(rows, 1);
  all[TokenMetric::keydiff] = keydiff.replicate(rows, 1);
  if (asked.contains(TokenMetric::expected_attention)) {
    set_expected_attention(group, options.per_query_head, all[TokenMetric::expected_attention]);
  }
  for (const TokenMetricFacts& facts : kTokenMetrics)
    if (facts.on_host && asked.contains(facts.id))
      all[facts.id] = prompt_score_reference(facts.id, group, options.window).transpose().replicate(rows, 1);
  MetricSet without;  // gradients, a second reading
  if (group.q_ref.empty()) without.insert(TokenMetric::kvzip);
  if (loss_rows(window, group.g_window.rows).count() == 0) without.insert(TokenMetric::exact_loss);
  if (loss_rows(future, group.g_future.rows).count() == 0) without.insert(TokenMetric::oracle_loss);
  for (TokenMetric metric : kTokenMetrics.all()) {
    if (!asked.contains(metric) || without.contains(metric)) all[metric].resize(0, 0);
  }
  return all;
}

CaoteScores caote_reference(Vector<double> s, const HeadMatrix<double>& values) {
  const Index n = s.size();
  CaoteScores scores{Vector<double>::Zero(n), Vector<double>::Zero(n)};
  const double total = s.sum();
  if (total < 1e-280) return scores;  // nothing to lose, and what is left of the weights has lost its digits
  s /= total;
  const Vector<double> mean = values.colwise().mean().transpose();
  for (Index p = 0; p < n; ++p) {
    const Vector<double> v_p = values.row(p).transpose();
    double others = 0.0;  // 1 - s_p
    for (Index m = 0; m < n; ++m) {
      if (m != p) others += s[m];
    }
    // sum_m s_m v_m - v_p = (1 - s_p) (m' - v_p) with m' the weighted mean of the others, 0 if there is none
    Vector<double> mean_of_others = Vector<double>::Zero(values.cols());
    if (others > 0.0) mean_of_others = sum_without(values, s, p) / others;
    scores.caote[p] = s[p] * (mean_of_others - v_p).norm();
    const double distance = (mean - v_p).norm();
    const double factor = others < 1e-280 * s[p] ? 1.0 : s[p] / others;  // all of it: no 1 - s
    scores.fastcaote[p] = distance == 0.0 || s[p] == 0.0 ? 0.0 : factor * distance;
  }
  return scores;
}

std::vector<double> entries_reference(const Group& group, Index g, Index i, EntryTerm entry,
                                      const std::vector<Index>& tokens) {
  std::vector<double> out(tokens.size(), std::numeric_limits<double>::quiet_NaN());
  const LogitRow logits = attention_logits(group, g, i);
  const Vector<double> a = attention_weights(group, g, logits.z);
  const std::optional<TokenMetric> metric = kEntries[entry].metric;
  const std::optional<TokenChange> change = metric ? change_of(*metric) : std::nullopt;
  Vector<double> exact;
  if (change) exact = brute_force_errors(group, g, i, *change, tokens);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const Index p = tokens[t];
    if (p < group.first_visible(i) || p >= group.end_visible(i)) continue;
    if (!metric)
      out[t] = logits.z[p];
    else if (change)
      out[t] = exact[static_cast<Index>(t)];
    else
      out[t] = term_of(*metric, a[p], logit_times_slope(group.rule, logits.raw[p]),
                       group.v.row(p).transpose(), value_less_output_in_parts(group, g, logits.z, a, p));
  }
  return out;
}

Vector<double> loss_totals_reference(const HeadGroup<double>& group, Index g,
                                     const RowGradients<double>& gradients, RowRange rows) {
  Vector<double> loss = Vector<double>::Zero(group.l);
  for (Index i = rows.begin; i < rows.end; ++i) {
    const Vector<double> z = attention_logits(group, g, i).z;
    const Vector<double> weights = attention_weights(group, g, z);
    for (Index p = group.first_visible(i); p < std::min(group.l, group.end_visible(i)); ++p) {
      Vector<double> without = z;
      without[p] = -std::numeric_limits<double>::infinity();
      const Vector<double> change = group.v.transpose() * (attention_weights(group, g, without) - weights);
      for (Index s = 0; s < gradients.samples; ++s) {
        const double nats =
            gradients.g[g].row(s * gradients.rows.count() + i - gradients.rows.begin).dot(change);
        loss[p] += nats * nats / static_cast<double>(2 * gradients.samples);
      }
    }
  }
  return loss;
}

}  // namespace kvreplay
