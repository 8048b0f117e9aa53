#include "analysis/results/figure_table.hpp"

#include "analysis/results/figures.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace kvreplay {
namespace {

std::vector<double> finite(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values;
}

}  // namespace

FigureEntry FigureEntry::empty(std::vector<std::string> key, std::size_t layers, Index n_kv) {
  return {std::move(key), std::vector<double>(layers * static_cast<std::size_t>(n_kv), kNan),
          std::vector<double>(layers, kNan), kNan, ""};
}

double& FigureEntry::value_of(std::optional<Index> layer_row, std::optional<Index> head) {
  if (!layer_row) return model;
  const auto row = static_cast<std::size_t>(*layer_row);
  return head ? heads[row * (heads.size() / layers.size()) + static_cast<std::size_t>(*head)] : layers[row];
}

FigureTable::FigureTable(Table table) : KeyedTable(table) {
  columns_ = figure_keys(table);
  columns_.erase(columns_.begin(), columns_.begin() + 2);  // layer, kv_head
}

FigureTable::FigureTable(const ResultReader& results, Table table) : FigureTable(table) {
  if (!results.has(table)) return;
  std::map<std::vector<std::string>, std::size_t> by_key;
  each_figure(results, table, [&](const TableFigure& figure) {
    const auto [found, fresh] =
        by_key.emplace(std::vector(figure.keys.begin() + 2, figure.keys.end()), entries_.size());
    if (fresh) entries_.push_back(Entry::empty(found->first, results.layers().size(), results.shape().n_kv));
    Entry& entry = entries_[found->second];
    entry.value_of(figure.layer ? std::optional(figure.layer_row) : std::nullopt, figure.kv_head) =
        figure.value;
    if (figure.level() == Level::model) entry.kept = figure.derived;
  });
}

std::string best_rows(const FigureTable& table, const Wanted& common) {
  return is_in(table.distinct("rows", common), name_of(RowSet::future)) ? "future" : "window";
}

double median(std::vector<double> values) {
  values = finite(std::move(values));
  return quantile(values, 0.5);
}

double smallest(const std::vector<double>& values) {
  const std::vector<double> there = finite(values);
  return there.empty() ? kNan : *std::ranges::min_element(there);
}

double largest(const std::vector<double>& values) {
  const std::vector<double> there = finite(values);
  return there.empty() ? kNan : *std::ranges::max_element(there);
}

double mean(const std::vector<double>& values) {
  const std::vector<double> there = finite(values);
  double sum = 0;
  for (const double value : there) sum += value;
  return there.empty() ? kNan : sum / static_cast<double>(there.size());
}

}  // namespace kvreplay
