#pragma once

#include "analysis/drawing/color_scale.hpp"
#include "analysis/results/result_reader.hpp"
#include "sim/head_group.hpp"

#include <string>
#include <vector>

namespace kvreplay::report {

/// A matrix of colours: heads, or who is how good at what. Without a value: hatched.
struct CellMap {
  std::string id;     ///< of the picture, unique in the page
  std::string title;  ///< what it shows, for those who hear it
  std::vector<std::string> rows, columns;
  std::vector<std::string> row_keys;    ///< the rows in CSV, where they are not called as here
  std::string row_label, column_label;  ///< what rows and columns are
  Matrix<double> values;                ///< [rows, columns]
  ColorScale scale;
  std::string value_label;  ///< beside the legend
  bool numbers = false;     ///< printed in the cells, three digits
  /// Cells at which the eye is to stop: the best of a column.
  std::vector<std::pair<Index, Index>> marked;
};

/// The heads of a run, layers downwards; numbers in the cells where they are few. `values` [layers, n_kv].
CellMap map_of_heads(const ResultReader& results, Matrix<double> values);

std::string svg_of(const CellMap& map);
/// A row label, a column label and a value a row, digits enough to read the same number back.
std::string csv_of(const CellMap& map);

}  // namespace kvreplay::report
