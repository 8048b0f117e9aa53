#include "analysis/results/token_figures.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "sim/tokens/token_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

/// All points of all heads and metrics together; as base64 a page carries 5.3 bytes of each.
constexpr double kMostSampled = 450'000;
constexpr double kGridPoints = 22;

/// From 1 to n, evenly in the logarithm, and the table's own cuts.
std::vector<double> grid(Index n) {
  std::vector<double> k{1, static_cast<double>(n)};
  for (double i = 1; i < kGridPoints; ++i)
    k.push_back(std::floor(std::pow(static_cast<double>(n), i / kGridPoints) + 0.5));
  for (const auto& cut : agreement_cuts(static_cast<std::size_t>(n)))
    if (cut) k.push_back(static_cast<double>(*cut));
  std::ranges::sort(k);
  k.erase(std::unique(k.begin(), k.end()), k.end());
  return k;
}

void read_layer(const ResultReader& results, Index layer, TokenFigures& figures) {
  std::vector<ResultReader::Array> arrays;
  for (const std::string& metric : figures.metrics) {
    arrays.push_back(token_array(results, layer, metric));
    if (arrays.back().shape != arrays.front().shape)
      throw InputError((results.folder() / token_file(layer, metric)).string(),
                       "shape " + shape_text(arrays.front().shape),
                       "shape " + shape_text(arrays.back().shape));
  }
  const Index heads = arrays.front().shape[0], l = results.shape().l;
  const auto all_heads = static_cast<double>(heads) * static_cast<double>(results.layers().size());
  const auto most = static_cast<Index>(
      std::clamp(kMostSampled / (all_heads * static_cast<double>(figures.metrics.size())), 64.0, 1000.0));
  for (Index head = 0; head < heads; ++head) {
    figures.heads.push_back(head_name(results, layer, heads, head));
    std::map<std::string, std::vector<Index>> ranks;
    for (std::size_t m = 0; m < arrays.size(); ++m)
      ranks[figures.metrics[m]] = ranks_of(arrays[m].values.data() + head * l, l);
    for (std::size_t r = 0; r < figures.references.size(); ++r) {
      auto& of_head = figures.recall[r].emplace_back();
      for (const std::string& score : figures.scores)
        of_head.push_back(score == figures.references[r]
                              ? std::vector<double>(figures.k.size(), kNan)
                              : recall_curve(ranks[score], ranks[figures.references[r]], figures.k));
    }
    const std::vector<Index> sample = sampled_tokens(ranks[figures.references.front()], most);
    figures.positions.emplace_back(sample.begin(), sample.end());
    auto& values = figures.values.emplace_back();
    for (std::size_t m = 0; m < arrays.size(); ++m)
      for (const Index token : sample)
        values[figures.metrics[m]].push_back(arrays[m].values[head * l + token]);
  }
}

}  // namespace

fs::path token_file(Index layer, const std::string& metric) {
  return fs::path(layer_name(layer)) / "tokens" / (metric + ".npy");
}

MetricKind kind_of_metric(std::string_view name) {
  const auto known = kTokenMetrics.named(name);
  return known ? kTokenMetrics[*known].kind : MetricKind::score;
}

std::vector<std::string> metrics_in(const ResultReader& results) {
  std::vector<std::string> there;
  if (results.layers().empty()) return there;
  const auto add = [&](const std::string& name) {
    if (results.has(token_file(results.layers().front(), name))) there.push_back(name);
  };
  if (const auto metrics = results.option("tokens", "metrics"); metrics.is_array())
    for (const auto& metric : metrics)
      if (metric.is_string()) add(metric.get<std::string>());
  if (const auto scores = results.option("tokens", "scores"); scores.is_object())
    for (const auto& score : scores.items()) add(score.key());
  return there;
}

ResultReader::Array by_head(const ResultReader& results, const std::filesystem::path& name) {
  ResultReader::Array array = results.array(name);
  const DumpShape& dump = results.shape();
  const bool fits = array.shape.size() == 2 && array.shape[1] == dump.l &&
                    (array.shape[0] == dump.n_kv || array.shape[0] == dump.n_q);
  if (!fits)
    throw InputError((results.folder() / name).string(),
                     fmt::format("shape [{} or {}, {}]", dump.n_kv, dump.n_q, dump.l),
                     "shape " + shape_text(array.shape));
  return array;
}

ResultReader::Array token_array(const ResultReader& results, Index layer, const std::string& metric) {
  return by_head(results, token_file(layer, metric));
}

std::string head_name(const ResultReader& results, Index layer, Index heads, Index head) {
  return fmt::format("layer {}, {}head {}", layer, heads == results.shape().n_kv ? "" : "query ", head);
}

std::vector<Index> ranks_of(const double* values, Index count) {
  const Ranking ranking({values, static_cast<std::size_t>(count)});
  return {ranking.place().begin(), ranking.place().end()};
}

std::vector<double> recall_curve(const std::vector<Index>& score_rank,
                                 const std::vector<Index>& reference_rank, const std::vector<double>& k) {
  // A token is in both sets of the k largest from the k above both its ranks on.
  std::vector<double> enters(score_rank.size() + 1, 0.0);
  for (std::size_t token = 0; token < score_rank.size(); ++token)
    ++enters[static_cast<std::size_t>(std::max(score_rank[token], reference_rank[token])) + 1];
  std::partial_sum(enters.begin(), enters.end(), enters.begin());
  std::vector<double> recall;
  for (const double size : k) recall.push_back(enters[size] / size);
  return recall;
}

std::vector<Index> sampled_tokens(const std::vector<Index>& rank, Index most) {
  const auto n = std::ssize(rank);
  std::vector<Index> tokens;
  if (n <= most) {
    tokens.resize(rank.size());
    std::iota(tokens.begin(), tokens.end(), Index{0});
    return tokens;
  }
  const Index largest = most / 4, spaced = most - largest;
  for (Index token = 0; token < n; ++token)
    if (rank[token] < largest) tokens.push_back(token);
  for (Index i = 0; i < spaced; ++i) tokens.push_back(i * n / spaced);
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

TokenFigures token_figures(const ResultReader& results) {
  TokenFigures figures;
  figures.metrics = metrics_in(results);
  figures.tokens = results.shape().l;
  for (const std::string& metric : figures.metrics) {
    const MetricKind kind = kind_of_metric(metric);
    if (kind != MetricKind::score) figures.references.push_back(metric);
    if (kind != MetricKind::oracle) figures.scores.push_back(metric);
  }
  const auto remove = std::ranges::find(figures.references, "exact_remove");
  if (remove != figures.references.end()) std::rotate(figures.references.begin(), remove, remove + 1);
  if (figures.references.empty() || figures.tokens == 0) return figures;
  figures.k = grid(figures.tokens);
  figures.recall.resize(figures.references.size());
  for (const Index layer : results.layers()) read_layer(results, layer, figures);
  return figures;
}

}  // namespace kvreplay
