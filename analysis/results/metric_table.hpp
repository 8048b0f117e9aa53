#pragma once

#include "analysis/results/figures.hpp"
#include "analysis/results/scoped_figures.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {

class ResultFolder;

/// A filter on figures: columns of a table and the values that they must have.
using Wanted = std::vector<std::pair<std::string_view, std::string_view>>;
/// The filter with one more condition. Refers to the texts without copying them.
inline Wanted with(Wanted wanted, std::string_view key, std::string_view value) {
  wanted.emplace_back(key, value);
  return wanted;
}

/// Entries of a table, found by the values of its key columns. An entry has `key`, a value for each of them.
template <class Entry>
class KeyedTable {
 public:
  /// The table that the entries belong to.
  Table table() const { return table_; }
  bool empty() const { return entries_.empty(); }
  const std::vector<std::string>& key_columns() const { return columns_; }
  const std::vector<Entry>& entries() const { return entries_; }

  /// Empty where the table has no such column.
  const std::string& key(const Entry& entry, std::string_view column) const {
    const auto found = std::ranges::find(columns_, column);
    static const std::string none;
    return found == columns_.end() ? none : entry.key[found - columns_.begin()];
  }

  bool matches(const Entry& entry, const Wanted& wanted) const {
    return std::ranges::all_of(wanted,
                               [&](const auto& pair) { return key(entry, pair.first) == pair.second; });
  }

  /// The first value of each key that the table is swept over: what stands for all. Views of this table.
  Wanted first_of_swept() const {
    Wanted first;
    for (const std::string& column : columns_)
      if (is_swept(table_, column) && !entries_.empty())
        first.emplace_back(column, key(entries_.front(), column));
    return first;
  }

  /// The first entry with these values; null where there is none.
  const Entry* find(const Wanted& wanted) const {
    const auto found =
        std::ranges::find_if(entries_, [&](const Entry& entry) { return matches(entry, wanted); });
    return found == entries_.end() ? nullptr : &*found;
  }

  /// The values of a column in entries that match, each once, in the table's order.
  std::vector<std::string> distinct(std::string_view column, const Wanted& wanted = {}) const {
    const std::vector<std::string_view> values = values_of(column, wanted);
    return {values.begin(), values.end()};
  }

  /// All distinct combinations of values that entries matching `common` have in some columns, each with
  /// `common` in front. The last column changes fastest; rows of the decoding steps come first. The results
  /// are views of this table.
  std::vector<Wanted> choices(const std::vector<std::string_view>& columns, const Wanted& common) const {
    std::vector<Wanted> all{common};
    for (const std::string_view column : columns) {
      std::vector<Wanted> longer;
      for (const Wanted& one : all) {
        std::vector<std::string_view> values = values_of(column, one);
        if (column == "rows")
          std::stable_partition(values.begin(), values.end(),
                                [](std::string_view rows) { return rows == "future"; });
        for (const std::string_view value : values) longer.push_back(with(one, column, value));
      }
      all = std::move(longer);
    }
    return all;
  }

 protected:
  explicit KeyedTable(Table table) : table_(table) {}

  std::vector<std::string_view> values_of(std::string_view column, const Wanted& wanted) const {
    std::vector<std::string_view> values;
    for (const Entry& entry : entries_)
      if (matches(entry, wanted)) place_in(values, std::string_view(key(entry, column)));
    return values;
  }

  Table table_;
  std::vector<std::string> columns_;
  std::vector<Entry> entries_;
};

/// In the place of a row that a table does not have; a row without a value has kNan. NaN to all arithmetic.
inline constexpr double kNoRow = std::bit_cast<double>(std::bit_cast<std::uint64_t>(kNan) | 1);
inline bool has_row(double value) {
  return std::bit_cast<std::uint64_t>(value) != std::bit_cast<std::uint64_t>(kNoRow);
}

/// A number of every head, every layer and the model; kNoRow where the table has none.
struct ScopedValues {
  std::vector<double> heads = {};  ///< [layers x n_kv], row by row
  std::vector<double> layers = {};
  double model = kNoRow;

  double& at(Scope scope);
  double at(Scope scope) const { return const_cast<ScopedValues*>(this)->at(scope); }
  bool any() const;        ///< of heads, layers or the model
  bool any_heads() const;  ///< of heads
};

/// One metric under one set of keys.
struct MetricEntry : ScopedValues {
  std::vector<std::string> key = {};  ///< a value for each of key_columns(), the metric's name last
  /// Tokens or channels (`kept`, `pruned`), shared by the metrics of a case; no row where heads differ.
  std::shared_ptr<ScopedValues> kept = {};
  std::string item = {}, map = {};  ///< the case as its arrays are called, and the name of its map; or empty

  const std::string& metric() const { return key.back(); }
  /// The model's `kept` as text; empty where there is none.
  std::string kept_text() const;
};

/// A table of the schema in memory, one entry for every metric under every set of keys, instead of a row for
/// every head: made by a stage, or read from a result folder. Writers, reports, comparisons and findings read
/// it.
class MetricTable : public KeyedTable<MetricEntry> {
 public:
  using Entry = MetricEntry;

  /// A table without entries; `layers` by the dump's numbers, and the prompt's length, of which `kept_share`
  /// is a share.
  explicit MetricTable(Table table, std::vector<Index> layers = {}, Index n_kv = 0, Index prompt = 0);
  /// The table of a folder in the order of its rows, without entries where there is no such file. Its key
  /// columns are figure_keys() behind layer and head. In tables of heads only the median over the heads
  /// stands for the model. Throws InputError where the table is not what it should be, or has a row twice.
  MetricTable(const ResultReader& results, Table table);
  /// Keeps the entries with a value of a key column, without the column.
  void select(std::string_view column, std::string_view value);
  void drop(std::string_view column);
  /// Names windows as they were requested, "all", instead of the resulting number of rows, which depends on
  /// the prompt's length.
  void name_windows(const ResultReader& results);

  const std::vector<Index>& layers() const { return layers_; }  ///< by the dump's numbers

  /// An entry without rows.
  MetricEntry blank(std::vector<std::string> key) const;
  /// One more entry; its key has a value for each of key_columns(), and no other entry has the same.
  void add(MetricEntry entry) { entries_.push_back(std::move(entry)); }
  /// Adds an entry with value_of(scope), a std::optional<double>, at every scope.
  template <class ValueOf>
  MetricEntry& add(std::vector<std::string> key, const ValueOf& value_of) {
    MetricEntry& entry = entries_.emplace_back(blank(std::move(key)));
    fill(entry, value_of);
    return entry;
  }
  /// Adds an entry with values of the heads only, [layers x n_kv].
  template <class Values>
  MetricEntry& add_heads(std::vector<std::string> key, const Values& values) {
    MetricEntry& entry = entries_.emplace_back(blank(std::move(key)));
    entry.heads.assign(values.begin(), values.end());
    return entry;
  }
  /// Adds the metrics of a case with their maps: value_of(scope, metric, rows) at every scope, on all rows.
  /// `key` are the values of the key columns before `rows` and `metric`; metrics without rows are left out.
  template <class Metrics, class ValueOf>
  void add_case(const Metrics& metrics, const std::vector<std::string>& key, const std::string& item,
                const std::shared_ptr<ScopedValues>& kept, const ValueOf& value_of) {
    const bool by_rows = columns_.size() > key.size() + 1;
    for (const auto metric : metrics.all())
      for (const RowSet rows : kRowSets) {
        if (!by_rows && rows != RowSet::none) continue;
        MetricEntry entry = blank(key);
        fill(entry, [&](Scope scope) { return value_of(scope, metric, rows); });
        if (!entry.any()) continue;
        if (by_rows) entry.key.emplace_back(name_of(rows));
        entry.key.emplace_back(name_of(metric));
        entry.kept = kept;
        entry.item = item;
        if (!by_rows || rows != RowSet::none) entry.map = map_name(entry);
        entries_.push_back(std::move(entry));
      }
  }
  /// A number at every scope.
  template <class ValueOf>
  std::shared_ptr<ScopedValues> at_scopes(const ValueOf& value_of) const {
    ScopedValues values = blank({});
    fill(values, value_of);
    return std::make_shared<ScopedValues>(std::move(values));
  }

  /// Every head, layer by layer with the layer behind its heads, then the model: the order of a file's rows.
  /// None without layers.
  std::vector<Scope> scopes() const;
  /// Calls visit(entry, scope, value) for every row, in the order of a file's.
  template <class Visit>
  void each_row(const Visit& visit) const {
    for (const Scope scope : scopes())
      for (const MetricEntry& entry : entries_)
        if (const double value = entry.at(scope); has_row(value)) visit(entry, scope, value);
  }
  /// The value of a head of a layer, by its number in the dump; kNoRow of a layer that is not there.
  double of_head(const ScopedValues& values, Index layer, Index kv_head) const;
  /// The fields of layer and head in a row of this scope.
  std::vector<std::string> fields_of(Scope scope) const;
  /// Writes the table and maps/. Returns the number of rows. Notes to the folder which metrics of which heads
  /// have no value. `metrics` are columns of `heads` and of `budgets` that a run has besides the table's own.
  /// Throws InputError if a file cannot be written.
  std::size_t write(const ResultFolder& folder, std::span<const std::string> metrics = {}) const;
  /// A metric of the case that is called `item`; null where the table has none.
  const MetricEntry* of_case(std::string_view item, std::string_view metric, RowSet rows) const;
  /// The model's value of a metric on these rows, by MetricEntry::item.
  Json of_model(std::string_view metric, RowSet rows) const;

 private:
  template <class ValueOf>
  void fill(ScopedValues& values, const ValueOf& value_of) const {
    for (const Scope scope : scopes())
      if (const std::optional<double> value = value_of(scope)) values.at(scope) = *value;
  }
  std::string map_name(const MetricEntry& entry) const;
  void note_empty(const ResultFolder& folder) const;

  std::size_t place_of(std::string_view column) const {
    return static_cast<std::size_t>(std::ranges::find(columns_, column) - columns_.begin());
  }

  std::vector<Index> layers_;
  Index n_kv_ = 0, prompt_ = 0;
};

/// Statistics of the finite values; NaN where there are none.
double median(std::vector<double> values);
double smallest(const std::vector<double>& values);
double largest(const std::vector<double>& values);
double mean(const std::vector<double>& values);

/// The median heads of errors summed over heads (is_error_of_heads()), as metrics of the model.
std::vector<MetricEntry> median_heads(const MetricTable& table);

/// The rows that a table is judged on: those of the decoding steps where there are any.
std::string best_rows(const MetricTable& table, const Wanted& common = {});

/// The figures of a run by table, of a result folder or just computed.
struct FigureTables {
  DumpShape shape;
  std::vector<Index> layers;  ///< of the run, ascending, by the dump's numbers
  /// The numbers by which sentences name the dump's layers; empty: the dump's numbers, as in tables.
  std::vector<Index> called = {};
  MetricTable agreement{Table::agreement}, evictions{Table::evictions}, decode{Table::decode},
      budgets{Table::budgets}, channels{Table::channels}, compensation{Table::compensation};

  Index layer_called(Index layer) const {
    return called.empty() ? layer : called[static_cast<std::size_t>(layer)];
  }
};

/// A result folder's tables, read once.
struct Tables : FigureTables {
  explicit Tables(const ResultReader& reader)
      : FigureTables{.shape = reader.shape(),
                     .layers = reader.layers(),
                     .agreement{reader, Table::agreement},
                     .evictions{reader, Table::evictions},
                     .decode{reader, Table::decode},
                     .budgets{reader, Table::budgets},
                     .channels{reader, Table::channels},
                     .compensation{reader, Table::compensation}},
        results(reader) {}

  const ResultReader& results;
};

}  // namespace kvreplay
