#pragma once

#include "analysis/report/keyed_table.hpp"
#include "analysis/results/result_reader.hpp"

#include <limits>
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

  /// A table without rows where the folder has no such file. Its key columns are figure_keys() behind layer
  /// and head.
  FigureTable(const ResultReader& results, Table table);
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
