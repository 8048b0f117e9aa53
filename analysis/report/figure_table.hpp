#pragma once

#include "analysis/report/keyed_table.hpp"
#include "analysis/results/result_reader.hpp"

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace kvreplay::report {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A figure of every head, every layer and the model; NaN where the table has no value.
struct FigureEntry {
  std::vector<std::string> key;  ///< a value for each of key_columns()
  std::vector<double> heads;     ///< [layers x n_kv], row by row
  std::vector<double> layers;
  double model;
  std::string kept;  ///< of tokens or channels, in the row of the model; empty where heads differ
};

/// A table of a result folder, one entry for every figure instead of a row for every head.
class FigureTable : public KeyedTable<FigureEntry> {
 public:
  using Entry = FigureEntry;

  /// A table without rows where the folder has no such file. Columns of values that are not called "value"
  /// come as one more key column, "metric".
  FigureTable(const ResultReader& results, const std::string& name);

 private:
  Entry& entry_of(const std::vector<std::string>& key);
  void put(Entry& entry, const std::string& layer, const std::string& head, double value);

  std::map<std::vector<std::string>, std::size_t> by_key_;
  std::map<std::string, std::size_t> layer_row_;
  std::size_t n_kv_ = 0;
};

/// Of the finite values; NaN where there are none.
double median(std::vector<double> values);
double smallest(const std::vector<double>& values);
double largest(const std::vector<double>& values);
double mean(const std::vector<double>& values);

/// Tokens that a budget as it was asked for comes to, of `l`: "448" is 448 tokens, "0.5" a compression ratio.
/// `kept` where it is known.
double tokens_kept(const std::string& budget, const std::string& kept, Index l);

}  // namespace kvreplay::report
