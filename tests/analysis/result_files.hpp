#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

// Readers of result folders and small dumps for tests; they share nothing with the program's own readers and
// writers.

namespace kvreplay::test {

/// A `.npy` in C order, version 1.
struct Npy {
  std::string descr;
  std::vector<std::size_t> shape;
  std::string data;

  template <class T>
  std::vector<T> as() const {
    std::vector<T> values(data.size() / sizeof(T));
    std::memcpy(values.data(), data.data(), values.size() * sizeof(T));
    return values;
  }
  std::string bytes() const;
};
Npy npy_of(const std::string& bytes);
/// Fails the test where there is no such file.
Npy npy_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);
/// Makes results such as there were before files.csv was held against them, so that a reader's own checks are
/// met.
void forget_record(const std::filesystem::path& results);
/// An array of the given type: "<f8", "<f4", "|b1".
template <class T>
Npy npy(const std::string& descr, std::vector<std::size_t> shape, const std::vector<T>& values) {
  Npy array{descr, std::move(shape), std::string(values.size() * sizeof(T), '\0')};
  std::memcpy(array.data.data(), values.data(), array.data.size());
  return array;
}

/// The rows of a table by column name; fails the test where the header is not `header`.
using CsvRow = std::map<std::string, std::string>;
std::vector<CsvRow> csv_rows(const std::filesystem::path& path, const std::string& header);

/// evictions.csv by what a row is of. Scopes are "layer,kv_head"; "0," is a layer, "," the whole model.
class Evictions {
 public:
  explicit Evictions(const std::filesystem::path& folder);
  /// `run` is "policy,semantics,phase,budget". Fails the test where there is no such row.
  double at(const std::string& scope, const std::string& run, const std::string& rows,
            const std::string& metric) const;
  bool has(const std::string& scope, const std::string& run, const std::string& rows,
           const std::string& metric) const;
  const std::vector<CsvRow>& rows() const { return rows_; }

 private:
  std::vector<CsvRow> rows_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, double> values_;
};

/// The columns of a report's papers-claims.csv but for those of the prompts.
inline const std::string kClaims =
    "id,paper,figure,claim,claimed,setting,prompts,effect,low,high,verdict,layers";

/// The page of `kvreplay report` for a result folder, which succeeds.
std::string report_of(const std::filesystem::path& results, const std::vector<std::string>& more = {});

/// Two layers, 4 query heads on 2 KV heads of 8 channels, l = 61, 9 decoding steps, float32; `more` are
/// options of synth.
void make_small_dump(const std::string& folder, std::vector<std::string> more = {});
/// Adds queries of a second reading to a small dump, `rows` of every query head, of no particular values.
void add_second_reading(const std::string& dump, std::size_t rows);
/// Results of a small dump in `folder`/r: h2o, streaming and oracle at two budgets, attn divided evenly and
/// by lu, channels of think; beside them what kvvalidate.py would have found of each, made up.
std::filesystem::path validated_results(const std::filesystem::path& folder);
/// Keeps the queries (and outputs) of the last `count` positions only.
void keep_late_queries(const std::string& dump, std::size_t count);
/// Removes a tensor's file from every layer.
void remove_tensor(const std::string& dump, const std::string& name);

/// Bad usage or input: exit code 2, one line on standard error, which is returned, nothing on standard
/// output.
std::string complaint(const std::vector<std::string>& arguments);
/// The same for a run into DIR/r, which must not leave a result folder behind.
std::string refusal(std::vector<std::string> arguments, const std::filesystem::path& out);

}  // namespace kvreplay::test
