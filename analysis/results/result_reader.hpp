#pragma once

#include "analysis/results/csv.hpp"
#include "analysis/results/schema.hpp"
#include "data/dump.hpp"
#include "sim/head_group.hpp"

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// A finished result folder, read as far as it is asked for. Throws InputError, one line with the path, where
/// a file is missing or is not what it should be. Thread safe.
class ResultReader {
 public:
  /// Reads summary.json; throws where there is none, one of another schema, one without the dump's shape and
  /// the layers of the run, or one over several dumps, and where the results are unfinished.
  explicit ResultReader(std::filesystem::path folder);
  /// True if a folder looks like results: it has summary.json.
  static bool is_results(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Json& summary() const { return summary_; }
  /// An option that a command was asked with; null where it did not run, or has no such option.
  Json option(std::string_view command, std::string_view key) const;
  /// The shape of the dump, as the summary states it.
  const DumpShape& shape() const { return shape_; }
  /// Paths at which the dump may lie according to run.json: relative to the result folder, at its place when
  /// the run was made, and, for a relative path, relative to the working folder, the result folder and the
  /// folders above it. Returns the paths that exist; if none does, its place at the run. None if run.json
  /// names no dump.
  std::vector<std::filesystem::path> dump_paths() const;
  /// The layers of the run, ascending, by the dump's numbers.
  const std::vector<Index>& layers() const { return layers_; }
  /// The model's number of every layer of the dump, ascending; empty where they are the dump's own.
  const std::vector<Index>& model_layers() const { return model_layers_; }

  /// True if the results have such a file: files.csv names it or, if there is no files.csv, the file exists.
  bool has(const std::filesystem::path& name) const;
  bool has(Table table) const { return has(file_of(table)); }
  /// Tables that the results have, in the format's order.
  std::vector<Table> tables() const;
  /// Reads a table row by row: `visit(reader, row)`. The table must have its columns and as many rows as the
  /// summary counts. MetricTable interprets the rows.
  template <class Visit>
  void each_row(Table table, const Visit& visit) const {
    CsvReader reader = open_table(table);
    std::vector<std::string> row;
    while (reader.next(row)) visit(reader, row);
    check_rows(table, reader.rows());
  }
  /// The names of maps/, without ".npy", sorted.
  std::vector<std::string> map_names() const;
  /// Every .npy that it has in `below` and under it, relative to the folder, sorted.
  std::vector<std::string> array_names(const std::filesystem::path& below = "") const;
  /// [layers, n_kv] by name; rows in the order of layers(). NaN where a figure has no value.
  Matrix<double> map(const std::string& name) const;
  /// Any .npy of numbers or booleans: its shape and its numbers.
  struct Array {
    std::vector<Index> shape;
    std::vector<double> values;
  };
  Array array(const std::filesystem::path& name) const;
  /// Throws InputError where it has another shape.
  Array array(const std::filesystem::path& name, const std::vector<Index>& shape) const;

 private:
  CsvReader open_table(Table table) const;
  void check_rows(Table table, std::size_t rows) const;

  std::filesystem::path folder_;
  std::optional<std::set<std::string>> recorded_;  ///< in files.csv
  Json summary_;
  DumpShape shape_;
  std::vector<Index> layers_, model_layers_;
};

}  // namespace kvreplay
