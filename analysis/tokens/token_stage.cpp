#include "analysis/tokens/token_stage.hpp"

#include "analysis/results/table_writer.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "analysis/tokens/token_plan.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "sim/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace kvreplay {

TokenStage::TokenStage(const Dump& dump, const TokenStageOptions& options, const Compute& compute)
    : Stage(dump, compute), options_(options), shape_(dump.shape()) {
  TokenPlan plan = token_plan(dump, options);
  token_options_ = plan.options;
  metrics_ = std::move(plan.metrics);
  windows_ = std::move(plan.windows);
  options_.window = std::move(plan.asked);
  left_out_ = std::move(plan.left_out);
  notes_ = std::move(plan.notes);
  options_.metrics.assign(metrics_.begin(), metrics_.end());
  given_ = read_given_scores(token_option::score, options.scores, dump);
  pairs_ = token_pairs(token_options_.metrics, names_of(options.scores));
  if (!given_.empty() && (pairs_.empty() || pairs_.back().score.metric))
    throw OptionError(option_text("{} {}: no exact error and no oracle among {} to compare it with",
                                  token_option::score, given_.front().name, token_option::metrics));

  if (options.reserve.empty()) throw OptionError(token_option::reserve, "whole numbers", "none");
  std::vector<Index> reserves;  // each once, in the order given
  for (const Index reserve : options.reserve) {
    if (reserve < 0 || reserve >= shape_.l)
      throw OptionError(token_option::reserve,
                        fmt::format("0 to {} of the {} candidates", shape_.l - 1, shape_.l),
                        fmt::format("{}", reserve));
    if (std::find(reserves.begin(), reserves.end(), reserve) == reserves.end()) reserves.push_back(reserve);
  }
  options_.reserve = reserves;
}

std::vector<std::string> TokenStage::on_cpu() const {
  const bool leverage = std::count(metrics_.begin(), metrics_.end(), TokenMetric::leverage) > 0;
  return leverage ? std::vector<std::string>{"leverage"} : std::vector<std::string>{};
}

Json TokenStage::options() const {
  TokenStageOptions settled = options_;
  Json json = to_json(bound(settled));
  for (const GivenArray<double>& score : given_) json["scores"][score.name] = contents_fingerprint(score);
  return json;
}

std::size_t TokenStage::figures_per_head() const {
  return metrics_.size() +
         windows_.size() * pairs_.size() * options_.reserve.size() * kAgreementFigures.size() +
         (compute_.precision == Precision::tensor ? kTensorFigures : 0);
}

Index TokenStage::column(Case of, AgreementFigure figure) const {
  const std::size_t before = (of.window * pairs_.size() + of.pair) * options_.reserve.size() + of.reserve;
  return static_cast<Index>(metrics_.size() + before * kAgreementFigures.size() +
                            static_cast<std::size_t>(figure));
}

bool TokenStage::applies(const TokenPair& pair, std::size_t reserve, AgreementFigure figure) const {
  return figure_applies(figure, static_cast<std::size_t>(shape_.l), pair.same_unit(),
                        static_cast<std::size_t>(options_.reserve[reserve]));
}

TokenOptions TokenStage::options_of(std::size_t window) const {
  TokenOptions options = token_options_;
  options.window = windows_[window];
  if (window > 0)
    for (const TokenMetric metric : kTokenMetrics.all())
      if (kTokenMetrics[metric].rows != MetricRows::window) options.metrics.erase(metric);
  return options;
}

void TokenStage::begin_layer(Index) {
  const auto size = static_cast<std::size_t>((options_.per_query_head ? shape_.n_q : shape_.n_kv) * shape_.l);
  if (in_float32(compute_.precision))
    layer_f32_.assign(metrics_.size(), std::vector<float>(size));
  else
    layer_f64_.assign(metrics_.size(), std::vector<double>(size));
}

void TokenStage::compare_with_float32(const HeadGroup<float>& group, std::span<double> figures) const {
  const std::span<double> own = figures.last(kTensorFigures);
  std::fill(own.begin(), own.end(), std::numeric_limits<double>::quiet_NaN());
  if (group.kv_head > 0) return;
  const TensorAgreement found = tensor_agreement(group, token_options_, compute_);
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

void TokenStage::keep_arrays(const TokenMetrics& metrics, Index kv_head) {
  for (std::size_t m = 0; m < metrics_.size(); ++m) {
    const Matrix<double>& values = metrics[metrics_[m]];
    const auto offset = static_cast<std::size_t>(kv_head * values.size());
    for (std::size_t p = 0; p < static_cast<std::size_t>(values.size()); ++p) {
      if (in_float32(compute_.precision))
        layer_f32_[m][offset + p] = static_cast<float>(values.data()[p]);
      else
        layer_f64_[m][offset + p] = values.data()[p];
    }
  }
}

template <class T>
void TokenStage::measure(const HeadGroup<T>& group, const StoredGroup* stored, std::span<double> figures) {
  const GivenScores given = scores_of_head(given_, group.layer * shape_.n_kv + group.kv_head, shape_.l);
  TokenRankings rankings(given, compute_.workers);
  TokenMetrics first, other;  // the rankings refer to both
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const TokenOptions options = options_of(w);
    TokenMetrics& metrics = w == 0 ? first : other;
    if (!options.metrics.empty())
      metrics = compute_.backend.token_metrics(group, options, compute_.workers, stored);
    if (w == 0) keep_arrays(metrics, group.kv_head);
    if (options_.per_query_head) metrics = summed_over_group(metrics);
    for (std::size_t m = 0; w == 0 && m < metrics_.size(); ++m) {
      const Matrix<double>& values = metrics[metrics_[m]];
      figures[m] = compensated_sum({values.data(), static_cast<std::size_t>(values.size())});
    }
    rankings.rank(metrics);
    const std::vector<Agreement> agreements = rankings.agreements(pairs_, options_.reserve);
    auto to = figures.begin() + column({.window = w}, AgreementFigure::rel_l1);
    for (const Agreement& one : agreements) to = std::copy(one.values.begin(), one.values.end(), to);
  }
}

void TokenStage::head(const HeadGroup<float>& group, std::span<double> figures) {
  std::optional<StoredGroup> stored;
  if (compute_.backend.reads_stored()) {
    TokenOptions widest = token_options_;
    widest.window = *std::max_element(windows_.begin(), windows_.end());
    stored = load_stored_group(dump_, group.layer, group.kv_head, first_row_of(widest, shape_));
  }
  measure(group, stored ? &*stored : nullptr, figures);
  if (compute_.precision == Precision::tensor) compare_with_float32(group, figures);
}
void TokenStage::head(const HeadGroup<double>& group, std::span<double> figures) {
  measure(group, nullptr, figures);
}

void TokenStage::end_layer(const ResultFolder& folder, Index layer, LayerFigures) {
  const std::size_t shape[] = {static_cast<std::size_t>(options_.per_query_head ? shape_.n_q : shape_.n_kv),
                               static_cast<std::size_t>(shape_.l)};
  for (std::size_t m = 0; m < metrics_.size(); ++m) {
    AtomicFile file = folder.layer_file(layer, fmt::format("tokens/{}.npy", name_of(metrics_[m])));
    if (in_float32(compute_.precision))
      write_npy(std::move(file), shape, std::span<const float>(layer_f32_[m]));
    else
      write_npy(std::move(file), shape, std::span<const double>(layer_f64_[m]));
  }
  for (const GivenArray<double>& given : given_) {
    const std::vector<double> rows = given_rows(given, layer);
    AtomicFile file = folder.layer_file(layer, fmt::format("tokens/{}.npy", given.name));
    if (in_float32(compute_.precision))
      write_npy(std::move(file), shape, std::span<const float>(std::vector<float>(rows.begin(), rows.end())));
    else
      write_npy(std::move(file), shape, std::span<const double>(rows));
  }
}

std::vector<double> TokenStage::given_rows(const GivenArray<double>& given, Index layer) const {
  const Index copies = options_.per_query_head ? shape_.group() : 1;
  std::vector<double> rows;
  for (Index head = layer * shape_.n_kv; head < (layer + 1) * shape_.n_kv; ++head)
    for (Index copy = 0; copy < copies; ++copy)
      rows.insert(rows.end(), given.values.begin() + head * shape_.l,
                  given.values.begin() + (head + 1) * shape_.l);
  return rows;
}

void TokenStage::write_heads(const ResultFolder& folder, const HeadFigures& figures) const {
  std::vector<std::string> names;
  for (const TokenMetric m : metrics_) names.emplace_back(name_of(m));
  TableWriter csv(folder, Table::heads, names);
  for (Index row = 0; row < figures.values.rows(); ++row) {
    csv.at(figures.layers[row / figures.n_kv], row % figures.n_kv);
    for (std::size_t m = 0; m < names.size(); ++m)
      csv.set(names[m], figures.values(row, static_cast<Index>(m)));
    csv.end_row();
  }
  csv.finish();
}

std::size_t TokenStage::write_agreement(const ResultFolder& folder, const HeadFigures& figures) const {
  TableWriter csv(folder, Table::agreement);
  for (Index row = 0; row < figures.values.rows(); ++row) {
    csv.at(figures.layers[row / figures.n_kv], row % figures.n_kv);
    for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
      csv.set("score", pairs_[pair].score.name).set("reference", name_of(pairs_[pair].reference));
      csv.set("rows", pairs_[pair].rows());
      for (std::size_t w = 0; w < windows_.size(); ++w)
        for (std::size_t r = 0; r < options_.reserve.size(); ++r) {
          csv.set("window", windows_[w]).set("reserve", options_.reserve[r]);
          for (const AgreementFigure figure : kAgreementFigures.all())
            if (applies(pairs_[pair], r, figure))
              csv.add(figure, figures.values(row, column({w, pair, r}, figure)));
        }
    }
  }
  return csv.finish();
}

void TokenStage::write_maps(const ResultFolder& folder, const HeadFigures& figures) const {
  const auto write = [&](const MapName& name, Index from) {
    const Vector<double> map = figures.values.col(from);
    write_map(folder, name, figures, {map.data(), static_cast<std::size_t>(map.size())});
  };
  for (std::size_t m = 0; m < metrics_.size(); ++m)
    write({.table = Table::heads, .figure = std::string(name_of(metrics_[m]))}, static_cast<Index>(m));
  const auto unless_first = [](const std::vector<Index>& all, std::size_t at) {
    return at == 0 ? std::nullopt : std::optional(all[at]);
  };
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair)
    for (std::size_t w = 0; w < windows_.size(); ++w)
      for (std::size_t r = 0; r < options_.reserve.size(); ++r)
        for (const AgreementFigure figure : kAgreementFigures.all())
          if (applies(pairs_[pair], r, figure))
            write({.table = Table::agreement,
                   .figure = std::string(name_of(figure)),
                   .item = pairs_[pair].score.name,
                   .against = std::string(name_of(pairs_[pair].reference)),
                   .window = unless_first(windows_, w),
                   .reserve = unless_first(options_.reserve, r)},
                  column({w, pair, r}, figure));
}

Json TokenStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  write_heads(folder, figures);
  const std::size_t agreement_rows = write_agreement(folder, figures);
  write_maps(folder, figures);

  Json sums = Json::object();
  for (std::size_t m = 0; m < metrics_.size(); ++m) {
    const Vector<double> heads = figures.values.col(static_cast<Index>(m));
    sums[std::string(name_of(metrics_[m]))] =
        compensated_sum({heads.data(), static_cast<std::size_t>(heads.size())});
  }
  Json totals = {{"candidates", shape_.l},
                 {"window_rows", windows_.front()},
                 {"future_rows", future_rows(shape_.l, shape_.T, shape_.first_query()).count()},
                 {"agreement_rows", agreement_rows},
                 {"sums", sums}};
  if (const auto tensor = worst_tensor_agreement(figures))
    totals["tensor_against_f32"] = {{"difference", tensor->difference}, {"spearman", tensor->spearman}};
  return totals;
}

std::string TokenStage::report(const HeadFigures& figures) const {
  AgreementTable table;
  table.pairs = pairs_;
  for (Index row = 0; row < figures.values.rows(); ++row) {
    AgreementTable::Head head;
    head.layer = figures.layers[row / figures.n_kv];
    head.kv_head = row % figures.n_kv;
    head.agreements.resize(pairs_.size());
    for (std::size_t pair = 0; pair < pairs_.size(); ++pair)
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
