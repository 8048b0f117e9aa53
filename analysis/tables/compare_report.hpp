#pragma once

#include "analysis/tables/compare.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {

/// Two folders and all that is to be said of them.
struct FolderComparison {
  struct Side {
    std::string folder, model;
    KeyFilter filter;
  } a, b;
  bool same_heads = true;
  std::vector<RunDifference> run;
  std::vector<TableComparison> tables;
  std::vector<std::string> only_a, only_b;  ///< tables of one side
};

FolderComparison comparison_of(const ResultReader& a, const KeyFilter& left, const ResultReader& b,
                               const KeyFilter& right);

/// As it is printed, with the `most` largest differences of every block, or all (of correlations the
/// difference itself counts, of all else its share of the larger value); and the same in Markdown.
std::string plain_text(const FolderComparison& comparison, std::size_t most);
std::string markdown_text(const FolderComparison& comparison, std::size_t most);
/// Everything that plain_text() may say, without a limit; NaN as null.
nlohmann::ordered_json json_of(const FolderComparison& comparison);

/// compare_<table>.csv: the keys, a, b, difference, ratio.
void write_csv(const TableComparison& table, const std::filesystem::path& folder);

}  // namespace kvreplay
