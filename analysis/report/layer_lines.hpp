#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/results/over_dumps_reader.hpp"
#include "analysis/results/tables.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// A table's figures of whole layers, as lines over the layers.
struct LayerLines {
  Table table;
  std::string name, heading, reading;
  std::vector<const FigureFacts*> figures;  ///< in the order to offer them
  const char* item;                         ///< the key that tells methods apart
  /// The other keys that lists choose by, with what the lists are called.
  std::vector<std::pair<const char*, std::string>> keys;
  /// A value of a key that the lists begin with, where there is one.
  std::pair<const char*, const char*> first = {"", ""};
};

/// A line a method. Nothing where the table has no such figures, or the run one layer.
std::optional<Figure> layer_lines(const Tables& tables, const FigureTable& table, const LayerLines& wanted);
/// A line a dump and one of their mean; the method is one more list.
std::optional<Figure> layer_lines(const OverDumpsReader& results, const LayerLines& wanted);

}  // namespace kvreplay::report
