#pragma once

#include "data/dump.hpp"
#include "sim/head_group.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// A table of a result folder (analysis/RESULTS-FORMAT.md) as text, with its columns by name.
struct ResultTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::optional<std::size_t> column(std::string_view name) const;
};

/// A finished result folder, read as far as it is asked for. Throws InputError, one line with the path, where
/// a file is missing or is not what it should be. Thread safe.
class ResultTables {
 public:
  /// Reads summary.json; throws where there is none, or one of another schema.
  explicit ResultTables(std::filesystem::path folder);
  /// Whether a folder looks like one: it has summary.json.
  static bool is_results(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const nlohmann::ordered_json& summary() const { return summary_; }
  /// Where the dump lay, as the summary has it, relative paths taken from the working folder and from the
  /// result folder's.
  std::vector<std::filesystem::path> dump_paths() const;
  std::vector<Index> layers() const;  ///< the layers of the run

  bool has(const std::filesystem::path& name) const;
  /// "agreement.csv" and its like.
  ResultTable table(const std::string& name) const;
  /// The names of maps/, without ".npy", sorted.
  std::vector<std::string> map_names() const;
  /// [layers, n_kv] by name; rows in the order of layers().
  Matrix<double> map(const std::string& name) const;
  /// Any .npy of floating point numbers or integers: its shape and its numbers.
  struct Array {
    std::vector<Index> shape;
    std::vector<double> values;
  };
  Array array(const std::filesystem::path& name) const;

 private:
  std::filesystem::path folder_;
  nlohmann::ordered_json summary_;
};

}  // namespace kvreplay::viewer
