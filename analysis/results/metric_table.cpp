#include "analysis/results/metric_table.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>
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

namespace {

/// Rows of a table's file as entries.
class RowReader {
 public:
  RowReader(const ResultReader& results, const MetricTable& table)
      : results_(results), table_(table), wide_(is_wide(table.table())) {}

  void read(const CsvReader& csv, const std::vector<std::string>& row) {
    if (keys_.empty()) find_columns(csv);
    std::vector<std::string> key;
    for (std::size_t k = 2; k < keys_.size(); ++k) key.push_back(row[keys_[k]]);
    const Scope scope = scope_of(csv, row);
    if (scope.layer != scope_.layer || scope.head != scope_.head) next_ = order_.end();
    scope_ = scope;
    for (const std::size_t column : values_) {
      if (wide_ && row[column].empty()) continue;  // the row has no such metric, or that no value
      if (wide_) key.push_back(csv.columns()[column]);
      MetricEntry& entry = entry_of(key);
      if (has_row(entry.at(scope))) {
        std::vector<std::string> fields = table_.fields_of(scope);
        fields.insert(fields.end(), key.begin(), key.end());
        throw InputError((results_.folder() / file_of(table_.table())).string(), "every row once",
                         "two of " + joined(fields));
      }
      entry.at(scope) = csv.number_or_nan(row, column);
      if (wide_) key.pop_back();
      if (!kept_ || row[*kept_].empty()) continue;
      if (entry.kept == nullptr) entry.kept = std::make_shared<ScopedValues>(table_.blank({}));
      entry.kept->at(scope) = csv.number(row, *kept_);
    }
  }

  std::vector<MetricEntry> entries() {
    std::vector<MetricEntry> all;
    for (MetricEntry& entry : order_) all.push_back(std::move(entry));
    return all;
  }

 private:
  void find_columns(const CsvReader& csv) {
    for (const std::string& name : key_columns(table_.table())) keys_.push_back(csv.need(name));
    if (const auto derived = split_list(facts_of(table_.table()).derived); !derived.empty())
      kept_ = csv.need(derived.front());
    if (!wide_) values_ = {csv.need("value")};
    for (std::size_t c = 0; wide_ && c < csv.columns().size(); ++c)
      if (!is_in(keys_, c)) values_.push_back(c);
  }

  Scope scope_of(const CsvReader& csv, const std::vector<std::string>& row) const {
    const auto index = [&](std::size_t column) {
      return row[column].empty() ? std::optional<Index>() : std::optional<Index>(csv.index(row, column));
    };
    Scope scope{index(keys_[0]), index(keys_[1])};
    const auto found =
        scope.layer ? std::ranges::lower_bound(table_.layers(), *scope.layer) : table_.layers().end();
    const bool known = !scope.layer || (found != table_.layers().end() && *found == *scope.layer);
    if (!known || (scope.head && (!scope.layer || *scope.head >= results_.shape().n_kv)))
      csv.fail("heads of the run", fmt::format("layer {}, head {}", row[keys_[0]], row[keys_[1]]));
    if (scope.layer) scope.layer = found - table_.layers().begin();
    return scope;
  }

  /// A new entry stands behind that of the row before in its scope, and so in the order of the file.
  MetricEntry& entry_of(const std::vector<std::string>& key) {
    const auto [found, is_new] = places_.try_emplace(key);
    if (is_new)
      found->second = order_.insert(next_, table_.blank(key));
    else
      next_ = found->second, ++next_;
    return *found->second;
  }

  const ResultReader& results_;
  const MetricTable& table_;
  bool wide_;
  std::vector<std::size_t> keys_, values_;  // columns
  std::optional<std::size_t> kept_;
  std::list<MetricEntry> order_;
  std::list<MetricEntry>::iterator next_ = order_.end();
  std::map<std::vector<std::string>, std::list<MetricEntry>::iterator> places_;
  Scope scope_;
};

/// NaN left out.
double median_of_heads(const MetricEntry& entry) {
  std::vector<double> values = entry.heads;
  std::erase_if(values, [](double value) { return std::isnan(value); });
  return quantile(values, 0.5);
}

}  // namespace

MetricTable::MetricTable(const ResultReader& results, Table table)
    : MetricTable(table, results.layers(), results.shape().n_kv, results.shape().l) {
  if (!results.has(table)) return;
  RowReader reader(results, *this);
  results.each_row(table,
                   [&](const CsvReader& csv, const std::vector<std::string>& row) { reader.read(csv, row); });
  entries_ = reader.entries();
  for (MetricEntry& entry : entries_)
    if (facts_of(table).heads_only) entry.model = median_of_heads(entry);
}

void MetricTable::select(std::string_view column, std::string_view value) {
  std::erase_if(entries_, [&](const MetricEntry& entry) { return key(entry, column) != value; });
  drop(column);
}

void MetricTable::drop(std::string_view column) {
  const auto at = static_cast<std::ptrdiff_t>(place_of(column));
  if (at == std::ssize(columns_)) return;
  columns_.erase(columns_.begin() + at);
  for (MetricEntry& entry : entries_) entry.key.erase(entry.key.begin() + at);
}

void MetricTable::name_windows(const ResultReader& results) {
  const std::vector<std::string> rows = distinct("window"), asked = asked_windows(results);
  for (MetricEntry& entry : entries_)
    if (const std::size_t at = place_of("window"); at < columns_.size()) {
      const auto window = static_cast<std::size_t>(std::ranges::find(rows, entry.key[at]) - rows.begin());
      if (window < asked.size()) entry.key[at] = asked[window];
    }
}

double MetricTable::of_head(const ScopedValues& values, Index layer, Index kv_head) const {
  const auto found = std::ranges::find(layers_, layer);
  return found == layers_.end() ? kNoRow : values.at({found - layers_.begin(), kv_head});
}

std::vector<std::string> MetricTable::fields_of(Scope scope) const {
  return {scope.layer ? whole(layers_[static_cast<std::size_t>(*scope.layer)]) : "",
          scope.head ? whole(*scope.head) : ""};
}

std::vector<MetricEntry> median_heads(const MetricTable& table) {
  std::vector<MetricEntry> medians;
  for (const MetricEntry& entry : table.entries()) {
    const FigureFacts* const facts = figure_named(table.table(), entry.metric());
    if (facts == nullptr || !is_error_of_heads(*facts) || !entry.any_heads()) continue;
    MetricEntry& of_model = medians.emplace_back(table.blank(entry.key));
    of_model.key.back() += kMedianHead;
    of_model.model = median_of_heads(entry);
  }
  return medians;
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
          csv.add(fields_of(scope)[0]);
        else if (column == "kv_head")
          csv.add(fields_of(scope)[1]);
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

std::string best_rows(const MetricTable& table, const Wanted& common) {
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
