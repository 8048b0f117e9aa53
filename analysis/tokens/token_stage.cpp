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
#include <span>
#include <utility>

namespace kvreplay {

TokenStage::TokenStage(const Dump& dump, const TokenStageOptions& options, const Compute& compute)
    : Stage(dump, compute), plan_(token_plan(dump, options)), shape_(dump.shape()) {}

std::vector<std::string> TokenStage::on_cpu() const {
  const bool leverage = std::count(plan_.metrics.begin(), plan_.metrics.end(), TokenMetric::leverage) > 0;
  return leverage ? std::vector<std::string>{"leverage"} : std::vector<std::string>{};
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

void TokenStage::begin_layer(Index) {
  const auto size = static_cast<std::size_t>(array_rows() * shape_.l);
  const Array array =
      in_float32(compute_.precision) ? Array(std::vector<float>(size)) : std::vector<double>(size);
  arrays_.assign(plan_.metrics.size() + plan_.given.size(), array);
}

void TokenStage::compare_with_float32(const HeadGroup<float>& group, std::span<double> figures) const {
  const std::span<double> own = figures.last(kTensorFigures);
  std::fill(own.begin(), own.end(), std::numeric_limits<double>::quiet_NaN());
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
void TokenStage::measure(const HeadGroup<T>& group, const StoredGroup* stored, std::span<double> figures) {
  const GivenScores given = scores_of_head(plan_.given, group.layer * shape_.n_kv + group.kv_head, shape_.l);
  TokenRankings rankings(given, compute_.workers);
  TokenMetrics first, other;  // the rankings refer to both
  for (std::size_t w = 0; w < plan_.windows.size(); ++w) {
    const TokenOptions options = options_of(w);
    TokenMetrics& metrics = w == 0 ? first : other;
    if (!options.metrics.empty())
      metrics = compute_.backend.token_metrics(group, options, compute_.workers, stored);
    if (w == 0) keep_arrays(metrics, given, group.kv_head);
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
  std::optional<StoredGroup> stored;
  if (compute_.backend.reads_stored()) {
    TokenOptions widest = plan_.options;
    widest.window = *std::max_element(plan_.windows.begin(), plan_.windows.end());
    stored = load_stored_group(dump_, group.layer, group.kv_head, first_row_of(widest, shape_));
  }
  measure(group, stored ? &*stored : nullptr, figures);
  if (compute_.precision == Precision::tensor) compare_with_float32(group, figures);
}
void TokenStage::head(const HeadGroup<double>& group, std::span<double> figures) {
  measure(group, nullptr, figures);
}

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

void TokenStage::write_heads(const ResultFolder& folder, const HeadFigures& figures) const {
  std::vector<std::string> names;
  for (const TokenMetric m : plan_.metrics) names.emplace_back(name_of(m));
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
    for (std::size_t pair = 0; pair < plan_.pairs.size(); ++pair) {
      csv.set("score", plan_.pairs[pair].score.name).set("reference", name_of(plan_.pairs[pair].reference));
      csv.set("rows", plan_.pairs[pair].rows());
      for (std::size_t w = 0; w < plan_.windows.size(); ++w)
        for (std::size_t r = 0; r < plan_.settled.reserve.size(); ++r) {
          csv.set("window", plan_.windows[w]).set("reserve", plan_.settled.reserve[r]);
          for (const AgreementFigure figure : kAgreementFigures.all())
            if (applies(plan_.pairs[pair], r, figure))
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
  for (std::size_t m = 0; m < plan_.metrics.size(); ++m)
    write({.table = Table::heads, .figure = std::string(name_of(plan_.metrics[m]))}, static_cast<Index>(m));
  const auto unless_first = [](const std::vector<Index>& all, std::size_t at) {
    return at == 0 ? std::nullopt : std::optional(all[at]);
  };
  for (std::size_t pair = 0; pair < plan_.pairs.size(); ++pair)
    for (std::size_t w = 0; w < plan_.windows.size(); ++w)
      for (std::size_t r = 0; r < plan_.settled.reserve.size(); ++r)
        for (const AgreementFigure figure : kAgreementFigures.all())
          if (applies(plan_.pairs[pair], r, figure))
            write({.table = Table::agreement,
                   .figure = std::string(name_of(figure)),
                   .item = plan_.pairs[pair].score.name,
                   .against = std::string(name_of(plan_.pairs[pair].reference)),
                   .window = unless_first(plan_.windows, w),
                   .reserve = unless_first(plan_.settled.reserve, r)},
                  column({w, pair, r}, figure));
}

Json TokenStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  write_heads(folder, figures);
  const std::size_t agreement_rows = write_agreement(folder, figures);
  write_maps(folder, figures);

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
