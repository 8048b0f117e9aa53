#include "analysis/tokens/token_stage.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "sim/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace kvreplay {

BoundOptions bound(TokenStageOptions& options) {
  using namespace token_option;
  const auto on_request = [](const TokenMetricFacts& facts) { return facts.on_request; };
  return {bind_option(window, options.window),
          bind_option(metrics, options.metrics)
              .saying(fmt::format(": {}; all: every one that the dump can give but {}",
                                  fmt::join(kTokenMetrics.names(), ", "),
                                  fmt::join(kTokenMetrics.names_where(on_request), ", "))),
          bind_option(reserve, options.reserve), bind_option(per_query_head, options.per_query_head),
          // The contents of a file count, not its name.
          bind_option(score, options.scores).keyed("")};
}

TokenMetric OptionValue<TokenMetric>::parse(const OptionFacts& option, const std::string& word) {
  if (const auto metric = kTokenMetrics.named(in_known_spelling(word, kTokenMetrics.names()))) return *metric;
  throw OptionError(
      option_text("{}: unknown metric '{}'{}", option, word, alternatives(word, kTokenMetrics.names())));
}

MetricChoice OptionValue<MetricChoice>::parse(const OptionFacts& option, const std::string& word) {
  if (same_name(word, "all")) return std::nullopt;
  return OptionValue<TokenMetric>::parse(option, word);
}

namespace {

void choose_metrics(TokenPlan& plan, const Dump& dump, const std::vector<MetricChoice>& choices) {
  if (choices.empty()) throw OptionError(token_option::metrics, "names of metrics, or all", "none");
  const bool all = is_in(choices, std::nullopt);
  MetricSet& asked = plan.options.metrics;
  asked = {};
  for (const MetricChoice& choice : choices) {
    if (!choice) continue;
    if (const auto why = why_unavailable(*choice, dump))
      throw OptionError(
          option_text("{}: {} is unavailable: {}", token_option::metrics, name_of(*choice), *why));
    asked.insert(*choice);
  }
  for (const TokenMetric m : kTokenMetrics.all()) {
    if (all && !kTokenMetrics[m].on_request) {
      if (const auto why = why_unavailable(m, dump)) {
        plan.left_out.push_back({std::string(name_of(m)), *why});
        continue;
      }
      asked.insert(m);
    }
    if (asked.contains(m)) plan.metrics.push_back(m);
  }
  plan.settled.metrics.assign(plan.metrics.begin(), plan.metrics.end());
}

void choose_windows(TokenPlan& plan, const DumpShape& shape, const std::vector<Positions>& windows) {
  if (windows.empty()) throw OptionError(token_option::window, "numbers of rows", "none");
  plan.settled.window.clear();
  for (const Positions& window : windows) {
    const Index wanted = window.of(shape.l);
    const Index rows = window_rows(shape.l, shape.first_query(), wanted).count();
    if (is_in(plan.windows, rows)) continue;
    plan.windows.push_back(rows);
    plan.settled.window.push_back(window);
    if (rows > 0 && rows < wanted)
      plan.notes.push_back(fmt::format(
          "window {} clipped to {}: the dump holds the queries of {} prompt positions", wanted, rows, rows));
  }
  plan.options.window = plan.windows.front();
}

void choose_reserves(TokenPlan& plan, Index l, const std::vector<Index>& reserves) {
  if (reserves.empty()) throw OptionError(token_option::reserve, "whole numbers", "none");
  std::vector<Index>& once = plan.settled.reserve;
  once.clear();
  for (const Index reserve : reserves) {
    if (reserve < 0 || reserve >= l)
      throw OptionError(token_option::reserve, fmt::format("0 to {} of the {} candidates", l - 1, l),
                        fmt::format("{}", reserve));
    place_in(once, reserve);
  }
}

}  // namespace

TokenPlan token_plan(const Dump& dump, const TokenStageOptions& options) {
  TokenPlan plan;
  plan.settled = options;
  choose_metrics(plan, dump, options.metrics);
  choose_windows(plan, dump.shape(), options.window);
  plan.options.per_query_head = options.per_query_head;
  plan.given = read_given<double>(token_option::score, options.scores, dump);
  plan.pairs = token_pairs(plan.options.metrics, names_of(options.scores));
  if (!plan.given.empty() && (plan.pairs.empty() || plan.pairs.back().score.metric))
    throw OptionError(option_text("{} {}: no exact error and no oracle among {} to compare it with",
                                  token_option::score, plan.given.front().name, token_option::metrics));
  choose_reserves(plan, dump.shape().l, options.reserve);
  return plan;
}

TokenStage::TokenStage(const Dump& dump, TokenPlan plan, const Compute& compute)
    : Stage(dump, compute), plan_(std::move(plan)), shape_(dump.shape()) {}

std::vector<std::string> TokenStage::on_cpu() const {
  std::vector<std::string> parts;
  for (const TokenMetric metric : plan_.metrics) {
    const bool gated =
        metric == TokenMetric::oracle_importance && dump_.has(Tensor::wo) && dump_.has(Tensor::gate);
    if (kTokenMetrics[metric].on_host || gated) parts.emplace_back(name_of(metric));
  }
  return parts;
}

Json TokenStage::options() const {
  TokenStageOptions settled = plan_.settled;
  Json json = to_json(bound(settled));
  add_fingerprints(json, "scores", plan_.given);
  return json;
}

std::size_t TokenStage::figures_per_head() const {
  return plan_.metrics.size() +
         plan_.windows.size() * plan_.pairs.size() * plan_.settled.reserve.size() * kAgreementFigures.size() +
         (compute_.precision == Precision::tensor ? kTensorFigures : 0);
}

Index TokenStage::column(Case of, AgreementFigure figure) const {
  const std::size_t before =
      (of.window * plan_.pairs.size() + of.pair) * plan_.settled.reserve.size() + of.reserve;
  return static_cast<Index>(plan_.metrics.size() + before * kAgreementFigures.size() +
                            static_cast<std::size_t>(figure));
}

bool TokenStage::applies(const TokenPair& pair, std::size_t reserve, AgreementFigure figure) const {
  return figure_applies(figure, static_cast<std::size_t>(shape_.l), pair.same_unit(),
                        static_cast<std::size_t>(plan_.settled.reserve[reserve]));
}

TokenOptions TokenStage::options_of(std::size_t window) const {
  TokenOptions options = plan_.options;
  options.window = plan_.windows[window];
  if (window > 0)
    for (const TokenMetric metric : kTokenMetrics.all())
      if (kTokenMetrics[metric].rows != MetricRows::window) options.metrics.erase(metric);
  return options;
}

HeadParts TokenStage::parts_read() const {
  HeadParts all = parts_of(plan_.metrics.front(), shape_, plan_.windows.front());
  for (const Index window : plan_.windows)
    for (const TokenMetric metric : plan_.metrics) all |= parts_of(metric, shape_, window);
  return all;
}

HeadParts TokenStage::parts() const {
  HeadParts all = parts_read();
  all.checked_keys = true;
  return all;
}

void TokenStage::begin_layer(Index) {
  const auto size = static_cast<std::size_t>(array_rows() * shape_.l);
  const Array array =
      in_float32(compute_.precision) ? Array(std::vector<float>(size)) : std::vector<double>(size);
  arrays_.assign(plan_.metrics.size() + plan_.given.size(), array);
}

void TokenStage::compare_with_float32(const HeadGroup<float>& group, std::span<double> figures) const {
  const std::span<double> own = figures.last(kTensorFigures);
  std::fill(own.begin(), own.end(), kNan);
  if (group.kv_head > 0) return;
  const TensorAgreement found = tensor_agreement(group, plan_.options, compute_);
  own[0] = found.difference;
  own[1] = found.spearman;
}

std::optional<TensorAgreement> TokenStage::worst_tensor_agreement(const HeadFigures& figures) const {
  if (compute_.precision != Precision::tensor) return std::nullopt;
  TensorAgreement worst;
  const Index at = figures.values.cols() - static_cast<Index>(kTensorFigures);
  for (Index row = 0; row < figures.values.rows(); row += figures.n_kv) {
    worst.difference = std::max(worst.difference, figures.values(row, at));
    worst.spearman = std::min(worst.spearman, figures.values(row, at + 1));
  }
  return worst;
}

void TokenStage::keep_arrays(const TokenMetrics& metrics, const GivenScores& given, Index kv_head) {
  const Index rows = array_rows() / shape_.n_kv;
  const auto put = [&](std::size_t array, Index row, const double* values) {
    std::visit(
        [&]<class T>(std::vector<T>& to) {
          std::transform(values, values + shape_.l, to.begin() + (kv_head * rows + row) * shape_.l,
                         [](double value) { return static_cast<T>(value); });
        },
        arrays_[array]);
  };
  for (Index row = 0; row < rows; ++row) {
    for (std::size_t m = 0; m < plan_.metrics.size(); ++m)
      put(m, row, metrics[plan_.metrics[m]].data() + row * shape_.l);
    for (std::size_t s = 0; s < given.size(); ++s) put(plan_.metrics.size() + s, row, given[s].data());
  }
}

template <class T>
std::optional<StoredGroup> TokenStage::stored_group(const HeadGroup<T>& group) const {
  if (sizeof(T) != sizeof(float) || !compute_.backend.reads_stored()) return std::nullopt;
  return load_stored_group(dump_, group.layer, group.kv_head, parts());
}

template <class T>
TokenMetrics TokenStage::first_window(const HeadGroup<T>& group, const StoredGroup* stored,
                                      const GivenScores& given) {
  TokenMetrics metrics;
  if (!plan_.options.metrics.empty())
    metrics = compute_.backend.token_metrics(group, plan_.options, compute_.workers, stored);
  keep_arrays(metrics, given, group.kv_head);
  return metrics;
}

template <class T>
void TokenStage::fill_arrays(const HeadGroup<T>& group) {
  const std::optional<StoredGroup> stored = stored_group(group);
  first_window(group, stored ? &*stored : nullptr, {});
}
template void TokenStage::fill_arrays(const HeadGroup<float>&);
template void TokenStage::fill_arrays(const HeadGroup<double>&);

template <class T>
void TokenStage::measure(const HeadGroup<T>& group, std::span<double> figures) {
  const GivenScores given = scores_of_head(plan_.given, group.layer * shape_.n_kv + group.kv_head, shape_.l);
  const std::optional<StoredGroup> as_stored = stored_group(group);
  const StoredGroup* const stored = as_stored ? &*as_stored : nullptr;
  TokenRankings rankings(given, compute_.workers, group.first_held());
  TokenMetrics first, other;  // the rankings refer to both
  for (std::size_t w = 0; w < plan_.windows.size(); ++w) {
    TokenMetrics& metrics = w == 0 ? first : other;
    if (w == 0)
      metrics = first_window(group, stored, given);
    else if (const TokenOptions options = options_of(w); !options.metrics.empty())
      metrics = compute_.backend.token_metrics(group, options, compute_.workers, stored);
    if (plan_.options.per_query_head) metrics = summed_over_group(metrics);
    for (std::size_t m = 0; w == 0 && m < plan_.metrics.size(); ++m) {
      const Matrix<double>& values = metrics[plan_.metrics[m]];
      figures[m] = compensated_sum({values.data(), static_cast<std::size_t>(values.size())});
    }
    rankings.rank(metrics);
    const std::vector<Agreement> agreements = rankings.agreements(plan_.pairs, plan_.settled.reserve);
    auto to = figures.begin() + column({.window = w}, AgreementFigure::rel_l1);
    for (const Agreement& one : agreements) to = std::copy(one.values.begin(), one.values.end(), to);
  }
}

void TokenStage::head(const HeadGroup<float>& group, std::span<double> figures) {
  measure(group, figures);
  if (compute_.precision == Precision::tensor) compare_with_float32(group, figures);
}
void TokenStage::head(const HeadGroup<double>& group, std::span<double> figures) { measure(group, figures); }

void TokenStage::end_layer(const ResultFolder& folder, Index layer, LayerFigures) {
  const std::size_t shape[] = {static_cast<std::size_t>(array_rows()), static_cast<std::size_t>(shape_.l)};
  for (std::size_t a = 0; a < arrays_.size(); ++a) {
    const std::string name = a < plan_.metrics.size() ? std::string(name_of(plan_.metrics[a]))
                                                      : plan_.given[a - plan_.metrics.size()].name;
    std::visit(
        [&]<class T>(const std::vector<T>& values) {
          write_npy(folder.layer_file(layer, fmt::format("tokens/{}.npy", name)), shape,
                    std::span<const T>(values));
        },
        arrays_[a]);
  }
}

MetricTable TokenStage::sums(const HeadFigures& figures) const {
  MetricTable table(Table::heads, figures.layers, figures.n_kv);
  for (std::size_t m = 0; m < plan_.metrics.size(); ++m) {
    const std::string name(name_of(plan_.metrics[m]));
    table.add_heads({name}, figures.values.col(static_cast<Index>(m))).map = name;
  }
  return table;
}

MetricTable TokenStage::agreement(const HeadFigures& figures) const {
  MetricTable table(Table::agreement, figures.layers, figures.n_kv);
  const auto unless_first = [](const std::vector<Index>& all, std::size_t at) {
    return at == 0 ? std::nullopt : std::optional(all[at]);
  };
  for (std::size_t p = 0; p < plan_.pairs.size(); ++p)
    for (std::size_t w = 0; w < plan_.windows.size(); ++w)
      for (std::size_t r = 0; r < plan_.settled.reserve.size(); ++r)
        for (const AgreementFigure metric : kAgreementFigures.all()) {
          const TokenPair& pair = plan_.pairs[p];
          if (!applies(pair, r, metric)) continue;
          const std::string reference(name_of(pair.reference)), name(name_of(metric));
          table
              .add_heads({pair.score.name, reference, std::string(pair.rows()),
                          std::to_string(plan_.windows[w]), std::to_string(plan_.settled.reserve[r]), name},
                         figures.values.col(column({w, p, r}, metric)))
              .map = MapName{.table = Table::agreement,
                             .figure = name,
                             .item = pair.score.name,
                             .against = reference,
                             .window = unless_first(plan_.windows, w),
                             .reserve = unless_first(plan_.settled.reserve, r)}
                         .text();
        }
  return table;
}

Json TokenStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  std::vector<std::string> names;
  for (const TokenMetric metric : plan_.metrics) names.emplace_back(name_of(metric));
  sums(figures).write(folder, names);
  const std::size_t agreement_rows = agreement(figures).write(folder);
  Json sums = Json::object();
  for (std::size_t m = 0; m < plan_.metrics.size(); ++m) {
    const Vector<double> heads = figures.values.col(static_cast<Index>(m));
    sums[std::string(name_of(plan_.metrics[m]))] =
        compensated_sum({heads.data(), static_cast<std::size_t>(heads.size())});
  }
  Json totals = {{"candidates", shape_.l},
                 {"window_rows", plan_.windows.front()},
                 {"future_rows", future_rows(shape_.l, shape_.T, shape_.first_query()).count()},
                 {"agreement_rows", agreement_rows},
                 {"sums", sums}};
  if (const auto tensor = worst_tensor_agreement(figures))
    totals["tensor_against_f32"] = {{"difference", tensor->difference}, {"spearman", tensor->spearman}};
  return totals;
}

std::string TokenStage::report(const HeadFigures& figures) const {
  AgreementTable table;
  table.pairs = plan_.pairs;
  for (Index row = 0; row < figures.values.rows(); ++row) {
    AgreementTable::Head head;
    head.layer = figures.layers[row / figures.n_kv];
    head.kv_head = row % figures.n_kv;
    head.agreements.resize(plan_.pairs.size());
    for (std::size_t pair = 0; pair < plan_.pairs.size(); ++pair)
      for (const AgreementFigure figure : kAgreementFigures.all())
        head.agreements[pair].values[static_cast<std::size_t>(figure)] =
            figures.values(row, column({.pair = pair}, figure));
    table.heads.push_back(std::move(head));
  }
  std::string text = compact_text(table);
  if (const auto tensor = worst_tensor_agreement(figures))
    text += fmt::format(
        "\ntensor against f32 (KV head 0 of each layer, the worst metric): differs by {:.2g} of the norm, "
        "Spearman {:.6f}\n",
        tensor->difference, tensor->spearman);
  return text;
}

}  // namespace kvreplay
