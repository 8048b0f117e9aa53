#include "sim/gradient_rows.hpp"
#include "sim/head_group.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/prompt_scores.hpp"
#include "sim/tokens/token_readings.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

/// True if all candidates but one get so little attention (attn: sums or maxima over the rows, [l]) that
/// float32 loses it: weights below 1e-38, and their squares from 1e-19 on.
bool beyond_float32(const Vector<double>& attn) {
  constexpr double kLeast = 1e-12;
  return attn.size() > 1 && others_of(attn).attn < kLeast * std::max(1.0, attn.maxCoeff());
}

/// Collects per-query-head rows into the shape that was asked for.
class Collector {
 public:
  template <class T>
  Collector(const HeadGroup<T>& group, const TokenOptions& options, TokenMetrics metrics = {})
      : result(std::move(metrics)), options_(options), G_(group.G()), l_(group.l) {}

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
    result[m].resize(options_.per_query_head ? G_ : 1, l_);
    result[m].rowwise() = row.transpose();
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

/// True if the metric is the sum of a RowScore over the window's rows.
constexpr bool is_row_sum(const TokenMetricFacts& facts) {
  return facts.decoding.rank == CacheRank::row_sums;
}
/// Smallest set of sums that gives the requested window metrics. CAOTE needs the sums of the weights, too.
ColumnSet window_columns(const Collector& out) {
  const bool outputs = out.wants_any([](const TokenMetricFacts& facts) {
    return is_row_sum(facts) && facts.decoding.score != RowScore::value &&
           !has_sum(ColumnSet::weights, facts.decoding.score);
  });
  return outputs ? ColumnSet::window : ColumnSet::weights;
}

template <class T>
void add_window_metrics(TokenReadings<T>& readings, const std::vector<ColumnTotals>& totals, Workers& workers,
                        Collector& out) {
  const bool squares = out.wants_any([](const TokenMetricFacts& facts) {
    return is_row_sum(facts) && facts.decoding.score == RowScore::value;
  });
  const Vector<double> value_sq = squares ? readings.value_squares() : Vector<double>();
  const Index G = std::ssize(totals);
  workers.parallel_for(Index{kTokenMetrics.size()}, [&](Index m) {
    const TokenMetricFacts& facts = *(kTokenMetrics.begin() + m);
    const RowScore score = facts.decoding.score;
    if (!is_row_sum(facts) || !out.wants(facts.id)) return;
    for (Index g = 0; g < G; ++g) {
      if (score == RowScore::value)
        out.add(facts.id, g, totals[g][RowScore::attention_sq].cwiseProduct(value_sq));
      else
        out.add(facts.id, g, totals[g][score]);
    }
  });
  if (!out.wants(TokenMetric::caote) && !out.wants(TokenMetric::fastcaote)) return;
  const std::vector<CaoteScores> scores = readings.caote(totals);
  for (Index g = 0; g < G; ++g) {
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
std::set<MetricRows> add_losses(TokenReadings<T>& readings, const HeadGroup<T>& group, Index window,
                                Collector& out) {
  std::set<MetricRows> lost;
  const auto add = [&](TokenMetric metric, const RowGradients<T>& gradients, RowRange measured) {
    const RowRange rows = loss_rows(measured, gradients.rows);
    if (!out.wants(metric) || rows.count() == 0) return;
    const std::vector<LossTotals> totals = readings.loss_totals(gradients, rows);
    for (Index g = 0; g < group.G(); ++g) {
      out.add(metric, g, totals[g].loss);
      if (beyond_float32(totals[g].max_attn)) lost.insert(kTokenMetrics[metric].rows);
    }
  };
  add(TokenMetric::exact_loss, group.g_window, window_rows(group.l, group.first_query(), window));
  add(TokenMetric::oracle_loss, group.g_future, future_rows(group.l, group.T_all(), group.first_query()));
  return lost;
}

void add_oracles(MetricRows rows, const std::vector<ColumnTotals>& totals, Collector& out) {
  for (Index g = 0; g < std::ssize(totals); ++g)
    out.add(rows == MetricRows::next ? TokenMetric::oracle_next : TokenMetric::oracle_future, g,
            totals[g][RowScore::exact_remove]);
}

template <class T>
void add_importance(TokenReadings<T>& readings, const HeadGroup<T>& group, RowRange rows,
                    const std::vector<ColumnTotals>& totals, Collector& out) {
  Matrix<double> gated;
  if (!group.gate.empty()) gated = readings.gated_importance(rows);
  for (Index g = 0; g < group.G(); ++g)
    out.add(TokenMetric::oracle_importance, g,
            group.gate.empty()
                ? Vector<double>(totals[g].max_attn.cwiseProduct(readings.projected_value_norms(g)))
                : Vector<double>(gated.row(g).transpose()));
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

/// Metrics of rows that attend; returns the rows on which float32 loses attention.
template <class T>
std::set<MetricRows> add_attention(TokenReadings<T>& readings, const HeadGroup<T>& group, Index window,
                                   Workers& workers, Collector& out) {
  const auto wants_of = [&](MetricRows rows) {
    return out.wants_any(
        [&](const auto& facts) { return facts.rows == rows && !facts.of_gradients && !facts.on_host; });
  };
  std::vector<MetricRows> asked;
  std::vector<ColumnRequest> requests;
  const auto ask = [&](MetricRows which, RowRange rows, ColumnSet columns) {
    if (!wants_of(which)) return;
    asked.push_back(which);
    requests.push_back({rows, columns});
  };
  ask(MetricRows::window, window_rows(group.l, group.first_query(), window), window_columns(out));
  ask(MetricRows::next, {group.l, group.l + 1}, ColumnSet::future);
  ask(MetricRows::future, future_rows(group.l, group.T_all(), group.first_query()),
      out.wants(TokenMetric::oracle_future) ? ColumnSet::future : ColumnSet::max_attn);
  std::set<MetricRows> lost;
  if (requests.empty()) return lost;
  const std::vector<std::vector<ColumnTotals>> totals_of = readings.column_totals(requests);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::vector<ColumnTotals>& totals = totals_of[i];
    const bool oracle = has_max_attn(requests[i].columns);
    for (const ColumnTotals& t : totals)
      if (beyond_float32(oracle ? t.max_attn : t[RowScore::attention])) lost.insert(asked[i]);
    if (oracle)
      add_oracles(asked[i], totals, out);
    else
      add_window_metrics(readings, totals, workers, out);
    if (asked[i] == MetricRows::future && out.wants(TokenMetric::oracle_importance))
      add_importance(readings, group, requests[i].rows, totals, out);
  }
  return lost;
}

}  // namespace

template <class T>
ReadMetrics read_metrics(TokenReadings<T>& readings, const HeadGroup<T>& group, const TokenOptions& options,
                         Workers& workers) {
  using M = TokenMetric;
  Collector out(group, options);
  std::set<MetricRows> lost = add_attention(readings, group, options.window, workers, out);
  lost.merge(add_losses(readings, group, options.window, out));
  if (out.wants(M::kvzip) && group.R_ref() > 0) {
    const Matrix<double> by_head = readings.repeat_attention();
    for (Index g = 0; g < group.G(); ++g)
      if (beyond_float32(by_head.row(g).transpose())) lost.insert(MetricRows::repeat);
    out.result[M::kvzip] = options.per_query_head ? by_head : Matrix<double>(by_head.colwise().maxCoeff());
  }
  if (out.wants(M::knorm)) out.set(M::knorm, -readings.key_norms());
  if (out.wants(M::keydiff)) out.set(M::keydiff, readings.keydiff());
  if (out.wants(M::expected_attention)) {
    const Matrix<double> by_head = readings.expected_attention();
    out.result[M::expected_attention] =
        options.per_query_head ? with_first_on_top(by_head) : with_first_on_top(by_head.colwise().mean());
  }
  return {std::move(out.result), std::move(lost)};
}

template <class T>
TokenMetrics finished_metrics(ReadMetrics read, const HeadGroup<T>& group, const TokenOptions& options,
                              Workers& workers) {
  Collector out(group, options, std::move(read.metrics));
  if constexpr (sizeof(T) == 4) out.take(in_float64(group, options, read.lost, workers));
  const auto add_from = [&](const HeadGroup<double>& wide) {
    for (const TokenMetricFacts& facts : kTokenMetrics)
      if (facts.on_host && out.wants(facts.id))
        out.set(facts.id, prompt_score(facts.id, wide, options.window, workers));
  };
  if constexpr (sizeof(T) == 8)
    add_from(group);
  else if (out.wants_any([](const TokenMetricFacts& facts) { return facts.on_host; }))
    add_from(converted<double>(group));
  require_finite(group, out.result);
  return std::move(out.result);
}

template <class T>
TokenMetrics token_metrics_cpu(const HeadGroup<T>& group, const TokenOptions& options, Workers& workers) {
  TokenReadings<T> readings(group, workers);
  return finished_metrics(read_metrics(readings, group, options, workers), group, options, workers);
}

template decltype(read_metrics<float>) read_metrics<float>;
template decltype(read_metrics<double>) read_metrics<double>;
template decltype(finished_metrics<float>) finished_metrics<float>;
template decltype(finished_metrics<double>) finished_metrics<double>;
template decltype(token_metrics_cpu<float>) token_metrics_cpu<float>;
template decltype(token_metrics_cpu<double>) token_metrics_cpu<double>;

}  // namespace kvreplay
