#pragma once

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

// Readers for the results of `kvreplay channels`.

namespace kvreplay::test {

/// channels.csv by what a row is of. Scopes are "layer,kv_head"; "0," is a layer, "," the whole model.
class ChannelFigures {
 public:
  explicit ChannelFigures(const std::filesystem::path& folder)
      : rows_(csv_rows(folder / "channels.csv",
                       "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value")) {
    for (CsvRow& row : rows_) {
      const std::string scope = row["layer"] + "," + row["kv_head"],
                        which = row["method"] + "-" + row["ratio"];
      INFO(scope << " " << which << " " << row["rows"] << " " << row["metric"]);
      REQUIRE(values_.emplace(std::tuple(scope, which, row["rows"], row["metric"]), std::stod(row["value"]))
                  .second);
    }
  }
  /// `which` is "method-ratio", "-" for what is of the interactions themselves.
  bool has(const std::string& scope, const std::string& which, const std::string& rows,
           const std::string& metric) const {
    return values_.count({scope, which, rows, metric}) == 1;
  }
  double at(const std::string& scope, const std::string& which, const std::string& rows,
            const std::string& metric) const {
    INFO(scope << " " << which << " " << rows << " " << metric);
    REQUIRE(has(scope, which, rows, metric));
    return values_.at({scope, which, rows, metric});
  }
  const std::vector<CsvRow>& rows() const { return rows_; }

 private:
  std::vector<CsvRow> rows_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, double> values_;
};

/// A run that must succeed without a word on standard error, in float64 unless `more` says otherwise.
inline ProcessResult run_command(const std::string& command, const std::string& dump, const std::string& out,
                                 const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = joined({command, dump, "--out", out}, more);
  if (std::find(more.begin(), more.end(), "--precision") == more.end())
    arguments = joined(arguments, {"--precision", "f64"});
  if (std::find(more.begin(), more.end(), "--threads") == more.end())
    arguments = joined(arguments, {"--threads", "2"});
  ProcessResult result = succeed(arguments);
  REQUIRE(result.err.empty());
  return result;
}

/// An array of a layer's channels/.
inline Npy channel_array(const std::filesystem::path& folder, std::size_t layer, const std::string& name) {
  return npy_file(folder / fmt::format("layer_{:02}", layer) / "channels" / (name + ".npy"));
}

/// Row r of a matrix of equal rows.
template <class T>
std::vector<T> row_of(const Npy& array, std::size_t r) {
  const std::vector<T> all = array.as<T>();
  const std::size_t width = array.shape.back();
  REQUIRE((r + 1) * width <= all.size());
  return {all.begin() + static_cast<std::ptrdiff_t>(r * width),
          all.begin() + static_cast<std::ptrdiff_t>((r + 1) * width)};
}

inline std::size_t marked(const std::vector<char>& set) {
  return static_cast<std::size_t>(std::count(set.begin(), set.end(), '\x01'));
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

}  // namespace kvreplay::test
