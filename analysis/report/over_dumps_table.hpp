#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/report/row_plots.hpp"
#include "analysis/results/figure_table.hpp"
#include "analysis/results/over_dumps_reader.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::report {

/// A figure of the model with its mean over dumps.
struct MeanEntry {
  std::vector<std::string> key;  ///< a value for each of key_columns()
  OverDumpsReader::Figure figure;
};

/// The figures of the model in a table over dumps; without entries where the folder has none.
class OverDumpsTable : public KeyedTable<MeanEntry> {
 public:
  OverDumpsTable(const OverDumpsReader& results, Table table);

  const std::vector<std::string>& dumps() const { return dumps_; }

  /// What the entries save of what those with `base` under the column `key` lose, all else alike: 1 - value /
  /// (value of base), formed dump by dump, so that what is hard about a prompt counts on both sides. The
  /// metric is "<metric> gain"; `base` itself has no entries.
  OverDumpsTable gains(std::string_view key, std::string_view base) const;

 private:
  explicit OverDumpsTable(Table table) : KeyedTable(table) {}

  std::vector<std::string> dumps_;
};

/// A figure as lists offer it.
struct OfferedMean {
  std::string metric;
  const FigureFacts* facts;
};
/// What the schema offers of a table, exact figures first.
std::vector<OfferedMean> offered_means(Table table);
/// The same as OverDumpsTable::gains() has them.
std::vector<OfferedMean> offered_gains(Table table);

/// Pictures of a table that lists choose from: all items that are alike in everything else in one.
struct MeanFigure {
  std::string name, heading, reading;
  std::string item;                  ///< the key whose values are the rows
  std::vector<OfferedMean> metrics;  ///< in the order to offer them
  std::vector<std::string> labels;   ///< of the lists, that of the metric first
  /// What the other lists say of an entry.
  std::function<std::vector<std::string>(const MeanEntry&)> picks;
  /// Which choices of the other lists come first; all alike where it is unset.
  std::function<bool(const MeanEntry&)> first;
};

/// Nothing where the table has no such entries.
std::optional<Figure> figure_of(const OverDumpsTable& table, const MeanFigure& wanted);

}  // namespace kvreplay::report
