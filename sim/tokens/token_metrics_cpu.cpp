#include "sim/compensation/leverage.hpp"
#include "sim/head_group.hpp"
#include "sim/loss/change_loss.hpp"
#include "sim/loss/loss_totals.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/caote.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/keydiff.hpp"
#include "sim/tokens/repeat_attention.hpp"
#include "sim/tokens/row_norms.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>

namespace kvreplay {
namespace {

/// Whether all candidates but one get so little attention (attn: sums or maxima over the rows, [l]) that
/// float32 loses it: weights below 1e-38, as their squares do from 1e-19 on.
bool beyond_float32(const Vector<double>& attn) {
  constexpr double kLeast = 1e-12;
  return attn.size() > 1 && others_of(attn).attn < kLeast * std::max(1.0, attn.maxCoeff());
}

/// KeyDiff of the candidates, [l].
template <class T>
Vector<double> keydiff_scores(const HeadGroup<T>& group, Workers& workers) {
  std::vector<Index> all(group.l);
  std::iota(all.begin(), all.end(), Index{0});
  KeyDiff<T> keydiff(group.k, group.l, workers);
  keydiff.add(all);
  return keydiff.scores(all);
}

/// Collects per-query-head rows into the shape that was asked for.
class Collector {
 public:
  Collector(const TokenOptions& options, Index G, Index l) : options_(options), G_(G), l_(l) {}

  bool wants(TokenMetric m) const { return options_.metrics.contains(m); }
  bool wants_any(const std::function<bool(const TokenMetricFacts&)>& which) const {
    return std::any_of(kTokenMetrics.begin(), kTokenMetrics.end(),
                       [&](const TokenMetricFacts& facts) { return wants(facts.id) && which(facts); });
  }
  /// A metric that is summed over the query heads.
  template <class Row>
  void add(TokenMetric m, Index g, const Row& row) {
    if (!wants(m)) return;
    Matrix<double>& out = result[m];
    if (out.size() == 0) out = Matrix<double>::Zero(options_.per_query_head ? G_ : 1, l_);
    out.row(options_.per_query_head ? g : 0) += row.transpose();
  }
  /// A metric of the KV head.
  void set(TokenMetric m, const Vector<double>& row) {
    result[m] = row.transpose().replicate(options_.per_query_head ? G_ : 1, 1);
  }

  /// In place of what there is.
  void take(TokenMetrics&& others) {
    for (const TokenMetric m : kTokenMetrics.all())
      if (others[m].size() > 0) result[m] = std::move(others[m]);
  }

  TokenMetrics result;

 private:
  const TokenOptions& options_;
  Index G_, l_;
};

/// A metric that is a column sum, or one times ||v||^2.
struct SummedMetric {
  TokenMetric metric;
  Vector<double> ColumnTotals::*sums;
  bool times_value_sq = false;
};
/// Those of the weights alone come first.
constexpr std::array kSummed = {SummedMetric{TokenMetric::attn, &ColumnTotals::attn},
                                SummedMetric{TokenMetric::attn_sq, &ColumnTotals::attn_sq},
                                SummedMetric{TokenMetric::value, &ColumnTotals::attn_sq, true},
                                SummedMetric{TokenMetric::exact_value, &ColumnTotals::attn_sq, true},
                                SummedMetric{TokenMetric::key, &ColumnTotals::key},
                                SummedMetric{TokenMetric::joint, &ColumnTotals::joint},
                                SummedMetric{TokenMetric::exact_key, &ColumnTotals::exact_key},
                                SummedMetric{TokenMetric::exact_joint, &ColumnTotals::exact_joint},
                                SummedMetric{TokenMetric::exact_remove, &ColumnTotals::exact_remove}};

template <class T>
void add_window_metrics(const HeadGroup<T>& group, const PreparedValues<T>& values,
                        const std::vector<ColumnTotals>& totals, bool weights_alone, Workers& workers,
                        Collector& out) {
  const Vector<double> value_sq =
      weights_alone ? Vector<double>() : Vector<double>(values.value_sq.template cast<double>());
  workers.parallel_for(weights_alone ? 2 : std::ssize(kSummed), [&](Index m) {
    const auto& [metric, sums, times_value_sq] = kSummed[m];
    if (!out.wants(metric)) return;
    for (Index g = 0; g < group.G(); ++g) {
      if (times_value_sq)
        out.add(metric, g, (totals[g].*sums).cwiseProduct(value_sq));
      else
        out.add(metric, g, totals[g].*sums);
    }
  });
  if (!out.wants(TokenMetric::caote) && !out.wants(TokenMetric::fastcaote)) return;
  const std::vector<CaoteScores> scores = caote_scores(values, totals, workers);
  for (Index g = 0; g < group.G(); ++g) {
    out.add(TokenMetric::caote, g, scores[g].caote);
    out.add(TokenMetric::fastcaote, g, scores[g].fastcaote);
  }
}

/// The metrics of the rows on which float32 loses attention.
TokenMetrics in_float64(const HeadGroup<float>& group, TokenOptions options, const std::set<MetricRows>& rows,
                        Workers& workers) {
  if (rows.empty()) return {};
  for (const TokenMetric m : kTokenMetrics.all())
    if (!rows.contains(kTokenMetrics[m].rows)) options.metrics.erase(m);
  return token_metrics_cpu(converted<double>(group), options, workers);
}

/// Metrics of gradients; returns the rows on which float32 loses attention.
template <class T>
std::set<MetricRows> add_losses(const HeadGroup<T>& group, const PreparedValues<T>& values, Index window,
                                Workers& workers, Collector& out) {
  std::set<MetricRows> lost;
  const auto add = [&](TokenMetric metric, const RowGradients<T>& gradients, RowRange measured) {
    const RowRange rows = loss_rows(measured, gradients.rows);
    if (!out.wants(metric) || rows.count() == 0) return;
    const std::vector<LossTotals> totals = loss_totals(group, values, gradients, rows, workers);
    for (Index g = 0; g < group.G(); ++g) {
      out.add(metric, g, totals[g].loss);
      if (beyond_float32(totals[g].max_attn)) lost.insert(kTokenMetrics[metric].rows);
    }
  };
  add(TokenMetric::exact_loss, group.g_window, window_rows(group.l, group.first_query(), window));
  add(TokenMetric::oracle_loss, group.g_future, future_rows(group.l, group.T_all(), group.first_query()));
  return lost;
}

template <class T>
void add_oracles(const HeadGroup<T>& group, MetricRows rows, const std::vector<ColumnTotals>& totals,
                 Workers& workers, Collector& out) {
  for (Index g = 0; g < group.G(); ++g) {
    out.add(rows == MetricRows::next ? TokenMetric::oracle_next : TokenMetric::oracle_future, g,
            totals[g].exact_remove);
    if (rows == MetricRows::future && out.wants(TokenMetric::oracle_importance))
      out.add(TokenMetric::oracle_importance, g,
              totals[g].max_attn.cwiseProduct(projected_value_norms(group, g, workers)));
  }
}

/// Finite inputs may overflow on the way.
template <class T>
void require_finite(const HeadGroup<T>& group, const TokenMetrics& metrics) {
  for (const TokenMetric m : kTokenMetrics.all()) {
    const Matrix<double>& values = metrics[m];
    if ((values.array() * 0.0).sum() == 0.0) continue;  // all finite; the rest only to say where one is not
    const double* at = std::find_if(values.data(), values.data() + values.size(),
                                    [](double x) { return !std::isfinite(x); });
    if (at == values.data() + values.size()) continue;
    report_not_finite(group, "a finite " + std::string(name_of(m)),
                      ", position " + std::to_string((at - values.data()) % group.l));
  }
}

}  // namespace

template <class T>
TokenMetrics token_metrics_by(const ColumnPasses<T>& passes, const HeadGroup<T>& group,
                              const TokenOptions& options, Workers& workers) {
  using M = TokenMetric;
  Collector out(options, group.G(), group.l);
  const auto wants_of = [&](MetricRows rows) {
    return out.wants_any([&](const auto& facts) { return facts.rows == rows && !facts.of_gradients; });
  };
  const bool of_values = out.wants_any([](const auto& facts) {
    return facts.rows == MetricRows::window && !facts.of_gradients && facts.of_values;
  });
  std::vector<MetricRows> asked;
  std::vector<ColumnRequest> requests;
  const auto ask = [&](MetricRows which, RowRange rows, ColumnSet columns) {
    if (!wants_of(which)) return;
    asked.push_back(which);
    requests.push_back({rows, columns});
  };
  ask(MetricRows::window, window_rows(group.l, group.first_query(), options.window),
      of_values ? ColumnSet::window : ColumnSet::weights);
  ask(MetricRows::next, {group.l, group.l + 1}, ColumnSet::future);
  ask(MetricRows::future, future_rows(group.l, group.T_all(), group.first_query()), ColumnSet::future);
  const bool losses = out.wants_any([](const auto& facts) { return facts.of_gradients; });
  std::set<MetricRows> lost;
  if (!requests.empty() || losses) {
    const bool weights_alone =
        !losses && requests.size() == 1 && requests.front().columns == ColumnSet::weights;
    const PreparedValues<T> values = weights_alone ? PreparedValues<T>() : prepare_values(group, workers);
    const auto totals_of =
        requests.empty() ? std::vector<std::vector<ColumnTotals>>() : passes(values, requests);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const std::vector<ColumnTotals>& totals = totals_of[i];
      const bool oracle = requests[i].columns == ColumnSet::future;
      for (const ColumnTotals& t : totals)
        if (beyond_float32(oracle ? t.max_attn : t.attn)) lost.insert(asked[i]);
      if (oracle)
        add_oracles(group, asked[i], totals, workers, out);
      else
        add_window_metrics(group, values, totals, !of_values, workers, out);
    }
    if (losses) lost.merge(add_losses(group, values, options.window, workers, out));
  }
  if (out.wants(M::kvzip) && group.R_ref() > 0) {
    const Matrix<double> by_head = largest_repeat_attention(group, workers);
    for (Index g = 0; g < group.G(); ++g)
      if (beyond_float32(by_head.row(g).transpose())) lost.insert(MetricRows::repeat);
    out.result[M::kvzip] = options.per_query_head ? by_head : Matrix<double>(by_head.colwise().maxCoeff());
  }
  if constexpr (sizeof(T) == 4) out.take(in_float64(group, options, lost, workers));
  if (out.wants(M::knorm)) out.set(M::knorm, -row_norms(group.k, group.l, workers));
  if (out.wants(M::keydiff)) out.set(M::keydiff, keydiff_scores(group, workers));
  if (out.wants(M::expected_attention)) {
    const Matrix<double> by_head = expected_attention_scores(group, {}, workers);
    out.result[M::expected_attention] =
        options.per_query_head ? with_first_on_top(by_head) : with_first_on_top(by_head.colwise().mean());
  }
  if (out.wants(M::leverage)) {
    // Rounded weights would be divided by the ridge.
    if constexpr (sizeof(T) == 4)
      out.set(M::leverage, leverage(converted<double>(group), workers));
    else
      out.set(M::leverage, leverage(group, workers));
  }
  require_finite(group, out.result);
  return std::move(out.result);
}

template <class T>
TokenMetrics token_metrics_cpu(const HeadGroup<T>& group, const TokenOptions& options, Workers& workers) {
  const ColumnPasses<T> passes = [&](const PreparedValues<T>& values,
                                     std::span<const ColumnRequest> requests) {
    return all_column_totals(group, values, requests, workers);
  };
  return token_metrics_by(passes, group, options, workers);
}

template decltype(token_metrics_by<float>) token_metrics_by<float>;
template decltype(token_metrics_by<double>) token_metrics_by<double>;
template decltype(token_metrics_cpu<float>) token_metrics_cpu<float>;
template decltype(token_metrics_cpu<double>) token_metrics_cpu<double>;

}  // namespace kvreplay
