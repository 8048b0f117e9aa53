#pragma once

#include "analysis/results/csv.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"

#include <concepts>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvreplay {

/// Writes a table of a result folder as the schema has it: a row is its keys' values and a figure, which is
/// empty where it has no value (nan). Throws InputError where the file cannot be written.
class TableWriter {
 public:
  /// `metrics` are the columns of `heads`, whose figures depend on the run.
  TableWriter(const ResultFolder& folder, Table table, std::span<const std::string> metrics = {});

  /// Sets the scope of the following rows: a head, a layer, or the model. Clears all other fields.
  TableWriter& at(std::optional<Index> layer, std::optional<Index> head);
  /// A field of the rows to come, until it is set again or at() is called.
  TableWriter& set(std::string_view column, std::string_view value);
  TableWriter& set(std::string_view column, double value) { return set(column, csv_number(value)); }
  TableWriter& set(std::string_view column, std::integral auto value) {
    return set(column, std::string_view(std::to_string(value)));
  }

  /// A field of a figure with a column of its own.
  template <class Id>
  TableWriter& set(Id figure, auto value) requires std::is_enum_v<Id> {
    if constexpr (std::is_floating_point_v<decltype(value)>) note_if_none(name_of(figure), value);
    return set(name_of(figure), value);
  }

  /// A row: the figure as `metric`, the number as `value`.
  template <class Id>
  void add(Id figure, double value) {
    add_row(name_of(figure), value);
  }
  /// A row of a table with a column for every figure.
  void end_row();
  /// Returns the number of rows. Reports to the folder which figures of which heads are empty.
  std::size_t finish();

 private:
  std::string& field(std::string_view column);
  void add_row(std::string_view metric, double value);
  void note_if_none(std::string_view figure, double value);

  const ResultFolder& folder_;
  const Table table_;
  std::map<std::string, std::vector<std::string>> empty_;  // the heads without a figure, by its name
  std::vector<std::string> columns_, row_;
  CsvFile csv_;
};

/// maps/<name>.npy, [layers, n_kv]: a number of every head of `figures`.
void write_map(const ResultFolder& folder, const MapName& name, const HeadFigures& figures,
               std::span<const double> heads);

}  // namespace kvreplay
