#pragma once

#include "analysis/drawing/color_scale.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_reader.hpp"
#include "sim/head_group.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::report {

/// A matrix of colours: heads, or who is how good at what. Without a value: hatched.
struct CellMap {
  std::string id;     ///< of the picture, unique in the page
  std::string title;  ///< description for screen readers
  std::vector<std::string> rows, columns;
  std::vector<std::string> row_keys;    ///< the rows in CSV, where they are not called as here
  std::string row_label, column_label;  ///< names of the rows and columns
  Matrix<double> values;                ///< [rows, columns]
  ColorScale scale;
  std::string value_label;  ///< beside the legend
  bool numbers = false;     ///< printed in the cells, three digits
  /// Cells at which the eye is to stop: the best of a column.
  std::vector<std::pair<Index, Index>> marked;
};

/// The heads of these layers, layers downwards; numbers in the cells where they are few. `values` [layers,
/// n_kv].
CellMap map_of_heads(const std::vector<Index>& layers, Matrix<double> values);

std::string svg_of(const CellMap& map);
/// A row label, a column label and a value a row, digits enough to read the same number back.
std::string csv_of(const CellMap& map);

// Figures of a table as matrices of colours. Without an id, a title and a name of the values.

/// A figure of the whole model: a row for each value of one key, a column for each of another (those of
/// `columns`, or all that there are), numbers in the cells. Its scale is logarithmic.
CellMap model_map(const MetricTable& table, std::string_view row_key, std::string_view column_key,
                  const Wanted& common, std::vector<std::string> columns = {});

/// Puts beside every column of model_map()'s, made by the same keys, one of the median head: of a sum over
/// heads that a few of them may rule.
void add_median_heads(CellMap& map, const MetricTable& table, std::string_view row_key,
                      std::string_view column_key, const Wanted& common);

/// A figure of every layer: a row for each value of a key, layers across.
CellMap layer_map(const ResultReader& results, const MetricTable& table, std::string_view row_key,
                  const Wanted& common);

/// The lowest of each column, oracles apart, and beside policies that evict those that read less: its rows
/// are values of the table's key `key`.
void mark_lowest(CellMap& map, Table table, std::string_view key);

}  // namespace kvreplay::report
