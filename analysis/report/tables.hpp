#pragma once

#include "analysis/report/figure_table.hpp"
#include "analysis/results/result_reader.hpp"

namespace kvreplay::report {

/// A result folder's tables, read once.
struct Tables {
  explicit Tables(const ResultReader& reader)
      : results(reader),
        agreement(reader, Table::agreement),
        evictions(reader, Table::evictions),
        decode(reader, Table::decode),
        budgets(reader, Table::budgets),
        channels(reader, Table::channels),
        compensation(reader, Table::compensation) {}

  const ResultReader& results;
  FigureTable agreement, evictions, decode, budgets, channels, compensation;
};

}  // namespace kvreplay::report
