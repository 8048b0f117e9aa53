#include "analysis/results/metric_table.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/console.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kvreplay {
namespace {

std::vector<double> finite(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values;
}

std::string whole(double value) { return fmt::format("{:.0f}", value); }
std::string whole(Index value) { return std::to_string(value); }

}  // namespace

double& ScopedValues::at(Scope scope) {
  if (!scope.layer) return model;
  const auto row = static_cast<std::size_t>(*scope.layer);
  return scope.head ? heads[row * (heads.size() / layers.size()) + static_cast<std::size_t>(*scope.head)]
                    : layers[row];
}

bool ScopedValues::any_heads() const { return std::ranges::any_of(heads, has_row); }
bool ScopedValues::any() const {
  return has_row(model) || std::ranges::any_of(layers, has_row) || any_heads();
}

std::string MetricEntry::kept_text() const {
  return kept == nullptr || std::isnan(kept->model) ? "" : whole(kept->model);
}

MetricTable::MetricTable(Table table, std::vector<Index> layers, Index n_kv, Index prompt)
    : KeyedTable(table), layers_(std::move(layers)), n_kv_(n_kv), prompt_(prompt) {
  columns_ = figure_keys(table);
  columns_.erase(columns_.begin(), columns_.begin() + 2);  // layer, kv_head
}

MetricTable::MetricTable(const ResultReader& results, Table table)
    : MetricTable(table, results.layers(), results.shape().n_kv, results.shape().l) {
  if (!results.has(table)) return;
  std::map<std::vector<std::string>, std::size_t> by_key;
  each_figure(results, table, [&](const TableFigure& figure) {
    const auto [found, fresh] =
        by_key.emplace(std::vector(figure.keys.begin() + 2, figure.keys.end()), entries_.size());
    if (fresh) entries_.push_back(blank(found->first));
    MetricEntry& entry = entries_[found->second];
    const Scope scope{figure.layer ? std::optional(figure.layer_row) : std::nullopt, figure.kv_head};
    entry.at(scope) = figure.value;
    if (figure.derived.empty()) return;
    if (entry.kept == nullptr) entry.kept = std::make_shared<ScopedValues>(blank({}));
    entry.kept->at(scope) = number_in(figure.derived);
  });
}

MetricEntry MetricTable::blank(std::vector<std::string> key) const {
  MetricEntry entry;
  entry.heads.assign(layers_.size() * static_cast<std::size_t>(n_kv_), kNoRow);
  entry.layers.assign(layers_.size(), kNoRow);
  entry.key = std::move(key);
  return entry;
}

std::vector<Scope> MetricTable::scopes() const {
  std::vector<Scope> all;
  for (Index layer = 0; layer < std::ssize(layers_); ++layer) {
    for (Index head = 0; head < n_kv_; ++head) all.push_back({layer, head});
    all.push_back({layer, std::nullopt});
  }
  if (!layers_.empty()) all.push_back({});
  return all;
}

std::string MetricTable::map_name(const MetricEntry& entry) const {
  return MapName{.table = table_, .figure = entry.metric(), .item = entry.item, .against = key(entry, "rows")}
      .text();
}

std::size_t MetricTable::write(const ResultFolder& folder, std::span<const std::string> metrics) const {
  std::vector<std::string> columns = split_list(facts_of(table_).columns);
  columns.insert(columns.end(), metrics.begin(), metrics.end());
  const bool wide = is_wide(table_);
  CsvFile csv(folder.file(file_of(table_)), fmt::format("{}", fmt::join(columns, ",")));
  const auto same_row = [&](const MetricEntry& a, const MetricEntry& b) {
    return wide && std::equal(a.key.begin(), a.key.end() - 1, b.key.begin(), b.key.end() - 1);
  };
  for (const Scope scope : scopes())
    for (auto begin = entries_.begin(), end = begin; begin != entries_.end(); begin = end) {
      for (end = begin + 1; end != entries_.end() && same_row(*begin, *end);) ++end;
      if (std::none_of(begin, end, [&](const MetricEntry& one) { return has_row(one.at(scope)); })) continue;
      const double kept = begin->kept == nullptr ? kNoRow : begin->kept->at(scope);
      for (const std::string& column : columns) {
        const auto named = std::find_if(begin, end, [&](const auto& one) { return one.metric() == column; });
        if (column == "layer")
          csv.add(scope.layer ? whole(layers_[static_cast<std::size_t>(*scope.layer)]) : "");
        else if (column == "kv_head")
          csv.add(scope.head ? whole(*scope.head) : "");
        else if (!wide && column == "value")
          csv.add(begin->at(scope));
        else if (column == "kept_share")
          csv.add(kept / static_cast<double>(prompt_));
        else if (is_in(columns_, column))
          csv.add(key(*begin, column));
        else if (!wide)  // kept, pruned
          csv.add(std::isnan(kept) ? "" : whole(kept));
        else if (named == end)
          csv.add("");
        else if (column == name_of(BudgetFigure::budget))
          csv.add(whole(named->at(scope)));
        else
          csv.add(named->at(scope));
      }
      csv.end_row();
    }
  csv.finish();
  for (const MetricEntry& entry : entries_) {
    if (entry.map.empty() || !entry.any_heads()) continue;
    std::vector<double> heads = entry.heads;
    std::ranges::replace_if(
        heads, [](double value) { return !has_row(value); }, kNan);
    const std::size_t shape[] = {layers_.size(), static_cast<std::size_t>(n_kv_)};
    write_npy(folder.file("maps/" + entry.map + ".npy"), shape, std::span<const double>(heads));
  }
  note_empty(folder);
  return csv.rows();
}

void MetricTable::note_empty(const ResultFolder& folder) const {
  std::map<std::string, std::vector<std::string>> empty;  // the places without a metric, by its name
  for (const Scope scope : scopes())
    for (const MetricEntry& entry : entries_) {
      const double value = entry.at(scope);
      if (!has_row(value) || std::isfinite(value) || table_ == Table::heads) continue;
      const Index layer = scope.layer ? layers_[static_cast<std::size_t>(*scope.layer)] : 0;
      const std::string place = !scope.layer  ? "the model"
                                : !scope.head ? fmt::format("layer {}", layer)
                                              : fmt::format("layer {} head {}", layer, *scope.head);
      std::vector<std::string>& places = empty[entry.metric()];
      if (places.empty() || places.back() != place) places.push_back(place);
    }
  std::map<std::vector<std::string>, std::vector<std::string>> metrics;  // by the same places
  for (const auto& [metric, places] : empty) metrics[places].push_back(metric);
  for (const auto& [places, names] : metrics) {
    constexpr std::size_t kNamed = 8;
    folder.note(fmt::format("{}: no {} of {}: what it is relative to is 0, or too small to tell from 0",
                            file_of(table_), fmt::join(names, ", "), first_names(places, kNamed)));
  }
}

const MetricEntry* MetricTable::of_case(std::string_view item, std::string_view metric, RowSet rows) const {
  const auto found = std::ranges::find_if(entries_, [&](const MetricEntry& entry) {
    return entry.item == item && entry.metric() == metric && key(entry, "rows") == name_of(rows);
  });
  return found == entries_.end() ? nullptr : &*found;
}

Json MetricTable::of_model(std::string_view metric, RowSet rows) const {
  Json values = Json::object();
  for (const MetricEntry& entry : entries_)
    if (entry.metric() == metric && key(entry, "rows") == name_of(rows) && has_row(entry.model))
      values[entry.item] = entry.model;
  return values;
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
