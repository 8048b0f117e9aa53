#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// A table of a result folder (analysis/RESULTS-FORMAT.md) as text, with its columns by name.
struct ResultTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::optional<std::size_t> column(std::string_view name) const;
};
std::size_t bytes_of(const ResultTable& table);

/// How the rows of a table of the format are told apart, and what they say. Lists are comma-separated.
struct TableFormat {
  std::string_view name;  ///< "agreement", without .csv
  std::string_view keys;  ///< columns that together tell a row from all others
  /// What follows from the keys and the prompt's length: `kept` from `budget`, `pruned` from `ratio`.
  std::string_view derived;
  std::string_view values;  ///< columns of figures; empty: all that are left
  bool heads_only;          ///< rows of heads, none of layers and of the model
  std::string_view count;   ///< the number of its rows in summary.json's "totals"; empty: not there
};

/// In the order in which folders list them.
std::span<const TableFormat> table_formats();
/// By name without .csv; null where there is none.
const TableFormat* table_format(std::string_view name);

/// "a,b" as its parts; none of an empty text.
std::vector<std::string> split_list(std::string_view text);

}  // namespace kvreplay
