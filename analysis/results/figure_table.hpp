#pragma once

#include "analysis/results/figures.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {

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

/// A figure of every head, every layer and the model; NaN where the table has no value.
struct FigureEntry {
  std::vector<std::string> key;  ///< a value for each of key_columns()
  std::vector<double> heads;     ///< [layers x n_kv], row by row
  std::vector<double> layers;
  double model;
  std::string kept;  ///< of tokens or channels, in the row of the model; empty where heads differ

  static FigureEntry empty(std::vector<std::string> key, std::size_t layers, Index n_kv);
  /// The value of a head of the layer in this row, of the layer where there is no head, else of the model.
  double& value_of(std::optional<Index> layer_row, std::optional<Index> head);
};

/// A table of a result folder, one entry for every figure instead of a row for every head.
class FigureTable : public KeyedTable<FigureEntry> {
 public:
  using Entry = FigureEntry;

  /// A table without entries, for figures that are in no folder.
  explicit FigureTable(Table table);
  /// One more entry; its key has a value for each of key_columns(), and no other entry has the same.
  void add(FigureEntry entry) { entries_.push_back(std::move(entry)); }

  /// A table without rows where the folder has no such file. Its key columns are figure_keys() behind layer
  /// and head.
  FigureTable(const ResultReader& results, Table table);
};

/// Statistics of the finite values; NaN where there are none.
double median(std::vector<double> values);
double smallest(const std::vector<double>& values);
double largest(const std::vector<double>& values);
double mean(const std::vector<double>& values);

/// The rows that a table is judged on: those of the decoding steps where there are any.
std::string best_rows(const FigureTable& table, const Wanted& common = {});

/// The figures of a run by table, of a result folder or just computed.
struct FigureTables {
  DumpShape shape;
  std::vector<Index> layers;  ///< of the run, ascending, by the dump's numbers
  /// The numbers by which sentences name the dump's layers; empty: the dump's numbers, as in tables.
  std::vector<Index> called = {};
  FigureTable agreement{Table::agreement}, evictions{Table::evictions}, decode{Table::decode},
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
