#include "viewer/work/head_figures.hpp"

#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "sim/backend.hpp"
#include "viewer/model/numbers.hpp"

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

std::size_t bytes_of(const TokenMetrics& metrics) {
  std::size_t bytes = sizeof(metrics);
  for (const Matrix<double>& values : metrics.values)
    bytes += static_cast<std::size_t>(values.size()) * sizeof(double);
  return bytes;
}

std::size_t bytes_of(const HeadSummary& summary) {
  return sizeof(summary) + summary.pairs.capacity() * sizeof(TokenPair) +
         summary.agreements.capacity() * sizeof(Agreement) + (summary.tokens ? bytes_of(*summary.tokens) : 0);
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
  return summary_of(std::move(metrics), group.layer, group.kv_head, options, compute.workers);
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
  summary.agreements = token_agreements(metrics, summary.pairs, workers);
  if (options.keep_tokens) summary.tokens = std::make_shared<const TokenMetrics>(std::move(metrics));
  return summary;
}

TokenMetrics read_token_metrics(const ResultReader& results, Index layer, Index kv_head) {
  const DumpShape& shape = results.shape();
  const auto& layers = results.layers();
  if (std::find(layers.begin(), layers.end(), layer) == layers.end() || kv_head < 0 || kv_head >= shape.n_kv)
    throw InputError(fmt::format("{}: no layer {} with a KV head {} in these results",
                                 results.folder().string(), layer, kv_head));
  const std::filesystem::path folder = std::filesystem::path(layer_name(layer)) / "tokens";
  TokenMetrics metrics;
  for (const TokenMetric m : kTokenMetrics.all()) {
    const std::filesystem::path name = folder / fmt::format("{}.npy", name_of(m));
    if (!results.has(name)) continue;
    const ResultReader::Array array = results.array(name);
    const std::vector<Index> by_group{shape.n_kv, shape.l}, by_query_head{shape.n_q, shape.l};
    if (array.shape != by_group && array.shape != by_query_head)
      throw InputError((results.folder() / name).string(),
                       "shape " + shape_text(by_group) + " or " + shape_text(by_query_head),
                       "shape " + shape_text(array.shape));
    const Index rows = array.shape[0] / shape.n_kv;
    metrics[m] =
        Eigen::Map<const Matrix<double>>(array.values.data() + kv_head * rows * shape.l, rows, shape.l);
  }
  return summed_over_group(metrics);
}

std::optional<TokenMetrics> read_query_head_metrics(const ResultReader& results, Index layer, Index kv_head,
                                                    Index query_head) {
  const DumpShape& shape = results.shape();
  const Index row = kv_head * (shape.n_q / shape.n_kv) + query_head;
  const std::vector<Index> expected{shape.n_q, shape.l};
  TokenMetrics metrics;
  bool any = false;
  for (const TokenMetric m : kTokenMetrics.all()) {
    const std::filesystem::path name =
        std::filesystem::path(layer_name(layer)) / "tokens" / fmt::format("{}.npy", name_of(m));
    if (!results.has(name)) continue;
    const ResultReader::Array array = results.array(name);
    if (shape.n_q > shape.n_kv && array.shape == std::vector<Index>{shape.n_kv, shape.l}) return std::nullopt;
    if (array.shape != expected || row >= shape.n_q)
      throw InputError((results.folder() / name).string(), "shape " + shape_text(expected),
                       "shape " + shape_text(array.shape));
    metrics[m] = Eigen::Map<const Matrix<double>>(array.values.data() + row * shape.l, 1, shape.l);
    any = true;
  }
  if (!any)
    throw InputError(fmt::format("{}: no token metrics of layer {}", results.folder().string(), layer));
  return metrics;
}

}  // namespace kvreplay::viewer
