#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/report/figure_table.hpp"

#include <initializer_list>
#include <string>
#include <vector>

namespace kvreplay::report {

/// A result folder's tables, read once.
struct Tables {
  explicit Tables(const ResultReader& reader)
      : results(reader),
        agreement(reader, Table::agreement),
        evictions(reader, Table::evictions),
        decode(reader, Table::decode),
        budgets(reader, Table::budgets),
        channels(reader, Table::channels) {}

  const ResultReader& results;
  FigureTable agreement, evictions, decode, budgets, channels;
};

// One each; without figures where the folder does not hold what they need. `missing` then says what would.
Section overview_section(const Tables& tables);
Section head_map_section(const Tables& tables);
Section token_section(const Tables& tables);
Section eviction_section(const Tables& tables);
Section budget_section(const Tables& tables);
Section channel_section(const Tables& tables);
Section claim_section(const Tables& tables);
Section run_section(const Tables& tables);

/// The settings of a summary as a table: those of its objects `keys`.
std::string settings_table(const nlohmann::ordered_json& summary, std::initializer_list<const char*> keys);
/// "layer 3, head 1", in the order of a table's heads.
std::vector<std::string> head_names(const ResultReader& results);
/// The rows to show first: those of the decoding steps where there are any.
std::string best_rows(const FigureTable& table);
/// "decoding steps" for "future", "window" for "window".
std::string rows_text(const std::string& rows);

}  // namespace kvreplay::report
