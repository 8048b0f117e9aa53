#pragma once

#include "analysis/results/figure_table.hpp"
#include "analysis/results/result_reader.hpp"

#include <vector>

namespace kvreplay {

/// The figures of a run by table, of a result folder or just computed.
struct FigureTables {
  DumpShape shape;
  std::vector<Index> layers;  ///< of the run, ascending, by the dump's numbers
  FigureTable agreement{Table::agreement}, evictions{Table::evictions}, decode{Table::decode},
      budgets{Table::budgets}, channels{Table::channels}, compensation{Table::compensation};
};

/// A result folder's tables, read once.
struct Tables : FigureTables {
  explicit Tables(const ResultReader& reader)
      : FigureTables{.shape = reader.shape(),
                     .layers = reader.layers(),
                     .agreement{reader, Table::agreement},
                     .evictions{reader, Table::evictions},
                     .decode{reader, Table::decode},
                     .budgets{reader, Table::budgets},
                     .channels{reader, Table::channels},
                     .compensation{reader, Table::compensation}},
        results(reader) {}

  const ResultReader& results;
};

}  // namespace kvreplay
