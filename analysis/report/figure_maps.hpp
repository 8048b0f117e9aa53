#pragma once

#include "analysis/report/cell_map.hpp"
#include "analysis/results/figure_table.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Figures of a table as matrices of colours. Without an id, a title and a name of the values.

namespace kvreplay::report {

/// A figure of the whole model: a row for each value of one key, a column for each of another (those of
/// `columns`, or all that there are), numbers in the cells. Its scale is logarithmic.
CellMap model_map(const FigureTable& table, std::string_view row_key, std::string_view column_key,
                  const Wanted& common, std::vector<std::string> columns = {});

/// Puts beside every column of model_map()'s, made by the same keys, one of the median head: of a sum over
/// heads that a few of them may rule.
void add_median_heads(CellMap& map, const FigureTable& table, std::string_view row_key,
                      std::string_view column_key, const Wanted& common);

/// A figure of every layer: a row for each value of a key, layers across.
CellMap layer_map(const ResultReader& results, const FigureTable& table, std::string_view row_key,
                  const Wanted& common);

/// The lowest of each column, oracles apart: its rows are values of the table's key `key`.
void mark_lowest(CellMap& map, Table table, std::string_view key);

}  // namespace kvreplay::report
