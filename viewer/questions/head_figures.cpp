#include "viewer/questions/head_figures.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/stored.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <filesystem>
#include <utility>

namespace kvreplay::viewer {

namespace {

std::span<const double> row_of(const Matrix<double>& values) {
  return {values.data(), static_cast<std::size_t>(values.size())};
}

}  // namespace

std::string name_of(const HeadFigure& figure) {
  MapName name{.table = Table::heads, .figure = std::string(name_of(figure.metric))};
  if (figure.reference)
    name = {.table = Table::agreement,
            .figure = std::string(name_of(figure.figure)),
            .item = std::string(name_of(figure.metric)),
            .against = std::string(name_of(*figure.reference))};
  return name.text();
}

std::optional<HeadFigure> head_figure_of(const MapName& map) {
  const bool sum = map.table == Table::heads;
  const auto metric = kTokenMetrics.named(sum ? map.figure : map.item);
  if (!metric || (!sum && map.table != Table::agreement)) return std::nullopt;
  if (sum) return HeadFigure{*metric, {}, {}};
  const auto reference = kTokenMetrics.named(map.against);
  const auto figure = kAgreementFigures.named(map.figure);
  if (!reference || !figure) return std::nullopt;
  return HeadFigure{*metric, reference, *figure};
}

std::optional<HeadFigure> head_figure_named(std::string_view name) {
  const auto map = map_named(name);
  return map && !map->window && !map->reserve ? head_figure_of(*map) : std::nullopt;
}

std::vector<HeadFigure> head_figures(const MetricSet& metrics, Index n) {
  std::vector<HeadFigure> figures;
  for (const TokenMetric m : kTokenMetrics.all())
    if (metrics.contains(m)) figures.push_back({m, {}, {}});
  for (const TokenPair& pair : token_pairs(metrics))
    for (const AgreementFigure figure : kAgreementFigures.all())
      if (figure_applies(figure, static_cast<std::size_t>(n), pair.same_unit()))
        figures.push_back({*pair.score.metric, pair.reference, figure});
  return figures;
}

double HeadSummary::value(const HeadFigure& figure) const {
  if (!figure.reference) return sums[static_cast<std::size_t>(figure.metric)];
  for (std::size_t p = 0; p < pairs.size(); ++p)
    if (pairs[p].score == figure.metric && pairs[p].reference == *figure.reference)
      return agreements[p][figure.figure];
  return kNone;
}

HeadSummary summarise_head(const HeadGroup<float>& group, const HeadSummaryOptions& options,
                           const Compute& compute, std::optional<Index> query_head) {
  TokenOptions token_options;
  token_options.window = options.window;
  token_options.metrics = options.metrics;
  token_options.per_query_head = query_head.has_value();
  TokenMetrics metrics = compute.backend.token_metrics(group, token_options, compute.workers);
  if (query_head)
    for (Matrix<double>& values : metrics.values)
      if (values.size() > 0) values = values.row(*query_head).eval();
  HeadSummaryOptions of_group = options;
  of_group.first_held = group.first_held();
  return summary_of(std::move(metrics), group.layer, group.kv_head, of_group, compute.workers);
}

HeadSummary summary_of(TokenMetrics metrics, Index layer, Index kv_head, const HeadSummaryOptions& options,
                       Workers& workers) {
  HeadSummary summary;
  summary.layer = layer;
  summary.kv_head = kv_head;
  summary.sums.fill(kNone);
  for (const TokenMetric m : kTokenMetrics.all()) {
    const Matrix<double>& values = metrics[m];
    if (values.size() == 0) continue;
    assert(values.rows() == 1 && (summary.l == 0 || values.cols() == summary.l));
    summary.metrics.insert(m);
    summary.l = values.cols();
    summary.sums[static_cast<std::size_t>(m)] = compensated_sum(row_of(values));
  }
  summary.pairs = token_pairs(summary.metrics);
  summary.agreements = token_agreements(metrics, summary.pairs, workers, {}, options.first_held);
  if (options.keep_tokens) summary.tokens = std::make_shared<const TokenMetrics>(std::move(metrics));
  return summary;
}

/// A metric of a KV head as the folder has it: [1 or G, l]; empty where it has none.
static Matrix<double> stored_metric(const ResultReader& results, Index layer, Index kv_head, TokenMetric m) {
  const std::filesystem::path name =
      std::filesystem::path(layer_name(layer)) / "tokens" / fmt::format("{}.npy", name_of(m));
  if (!results.has(name)) return {};
  const Index l = results.shape().l;
  const StoredRows rows(results, name, {l}, kv_head);
  return Eigen::Map<const Matrix<double>>(rows.part(0), static_cast<Index>(rows.parts()), l);
}

TokenMetrics read_token_metrics(const ResultReader& results, Index layer, Index kv_head) {
  if (why_no_layer(results, layer) || kv_head < 0 || kv_head >= results.shape().n_kv)
    throw InputError(fmt::format("{}: no layer {} with a KV head {} in these results",
                                 results.folder().string(), called(results, layer), kv_head));
  TokenMetrics metrics;
  for (const TokenMetric m : kTokenMetrics.all()) metrics[m] = stored_metric(results, layer, kv_head, m);
  return summed_over_group(metrics);
}

std::optional<TokenMetrics> read_query_head_metrics(const ResultReader& results, Index layer, Index kv_head,
                                                    Index query_head) {
  TokenMetrics metrics;
  bool any = false;
  for (const TokenMetric m : kTokenMetrics.all()) {
    const Matrix<double> rows = stored_metric(results, layer, kv_head, m);
    if (rows.size() == 0) continue;
    if (rows.rows() < results.shape().group()) return std::nullopt;
    metrics[m] = rows.row(query_head);
    any = true;
  }
  if (!any)
    throw InputError(
        fmt::format("{}: no token metrics of layer {}", results.folder().string(), called(results, layer)));
  return metrics;
}

std::string about(const FigureInfo& figure) {
  return fmt::format("{}{}", figure.title, meaning_of(figure.facts, "\n", "\n"));
}

ScaleKind scale_kind(FigureScale scale) {
  switch (scale) {
    case FigureScale::log:
      return ScaleKind::log;
    case FigureScale::signed_log:
      return ScaleKind::symlog;
    case FigureScale::linear:
    case FigureScale::share:
    case FigureScale::correlation:
    case FigureScale::gain:
      break;
  }
  return ScaleKind::linear;
}

FigureInfo figure_info(const HeadFigure& figure, Index reserve, std::optional<Index> window) {
  if (!figure.reference) {
    const FigureFacts& facts = *figure_named(Table::heads, name_of(figure.metric));
    return {name_of(figure), Table::heads, {std::string(facts.name)}, std::string(facts.title), facts};
  }
  const std::string score(name_of(figure.metric)), reference(name_of(*figure.reference)),
      what(name_of(figure.figure));
  FigureInfo info{name_of(figure),
                  Table::agreement,
                  {reference, score, what},
                  fmt::format("{} of {} against {}", what, score, reference),
                  facts_of(figure.figure)};
  std::string setting;
  if (window) setting += fmt::format(", window {}", *window);
  if (reserve > 0) setting += fmt::format(", the last {} reserved", counted(reserve, "token"));
  info.path.back() += setting;
  info.title += setting;
  return info;
}

}  // namespace kvreplay::viewer
