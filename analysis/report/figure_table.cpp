#include "analysis/report/figure_table.hpp"

#include "analysis/eviction/eviction_options.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvreplay::report {
namespace {

std::vector<double> finite(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values;
}

}  // namespace

FigureTable::FigureTable(const ResultReader& results, const std::string& name) {
  if (!results.has(name + ".csv")) return;
  const TableFormat& format = *table_format(name);
  for (const std::string& column : split_list(format.keys))
    if (column != "layer" && column != "kv_head") columns_.push_back(column);
  const std::vector<std::string> values = split_list(format.values), derived = split_list(format.derived);
  const bool wide = values.size() > 1;
  const std::size_t keys = columns_.size();
  if (wide) columns_.emplace_back("metric");
  n_kv_ = static_cast<std::size_t>(results.shape().n_kv);
  for (const Index layer : results.layers()) layer_row_.emplace(std::to_string(layer), layer_row_.size());

  std::vector<std::string> key(columns_.size());
  results.each_row(name + ".csv", [&](const CsvReader& csv, const std::vector<std::string>& row) {
    const std::string &layer = row[csv.need("layer")], &head = row[csv.need("kv_head")];
    for (std::size_t i = 0; i < keys; ++i) key[i] = row[csv.need(columns_[i])];
    for (const std::string& column : values) {
      if (wide) key.back() = column;
      Entry& entry = entry_of(key);
      const std::size_t at = csv.need(column);
      put(entry, layer, head, row[at].empty() ? kNan : csv.number(row, at));
      if (layer.empty() && !derived.empty()) entry.kept = row[csv.need(derived.front())];
    }
  });
}

FigureTable::Entry& FigureTable::entry_of(const std::vector<std::string>& key) {
  const auto [found, fresh] = by_key_.emplace(key, entries_.size());
  if (fresh)
    entries_.push_back({key, std::vector<double>(layer_row_.size() * n_kv_, kNan),
                        std::vector<double>(layer_row_.size(), kNan), kNan, ""});
  return entries_[found->second];
}

void FigureTable::put(Entry& entry, const std::string& layer, const std::string& head, double value) {
  if (layer.empty()) {
    entry.model = value;
    return;
  }
  const auto row = layer_row_.find(layer);
  if (row == layer_row_.end())
    throw InputError("a table of the results: layer", "one of the run's layers", fmt::format("'{}'", layer));
  if (head.empty()) {
    entry.layers[row->second] = value;
    return;
  }
  char* end = nullptr;
  const unsigned long number = std::strtoul(head.c_str(), &end, 10);
  if (*end != '\0' || number >= n_kv_)
    throw InputError("a table of the results: kv_head", fmt::format("a number below {}", n_kv_),
                     fmt::format("'{}'", head));
  entry.heads[row->second * n_kv_ + number] = value;
}

double median(std::vector<double> values) {
  values = finite(std::move(values));
  if (values.empty()) return kNan;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double smallest(const std::vector<double>& values) {
  const std::vector<double> there = finite(values);
  return there.empty() ? kNan : *std::min_element(there.begin(), there.end());
}

double largest(const std::vector<double>& values) {
  const std::vector<double> there = finite(values);
  return there.empty() ? kNan : *std::max_element(there.begin(), there.end());
}

double mean(const std::vector<double>& values) {
  const std::vector<double> there = finite(values);
  double sum = 0;
  for (const double value : there) sum += value;
  return there.empty() ? kNan : sum / static_cast<double>(there.size());
}

double tokens_kept(const std::string& budget, const std::string& kept, Index l) {
  if (!kept.empty()) return std::strtod(kept.c_str(), nullptr);
  if (budget.empty()) return kNan;
  const auto asked = budget_labelled(budget);
  return asked ? static_cast<double>(asked->kept(l, Semantics::paper)) : kNan;
}

}  // namespace kvreplay::report
