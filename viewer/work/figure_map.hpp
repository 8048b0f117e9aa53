#pragma once

#include "viewer/work/figure_info.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Figures with one number a head, for the Head map and its table of worst heads.

namespace kvreplay {
class ResultReader;
}

namespace kvreplay::viewer {

/// One figure of all heads.
struct FigureMap {
  FigureInfo figure;
  std::vector<Index> layers;  ///< the dump's number of each row
  Matrix<double> values;      ///< [layers, n_kv]; NaN where there is no value, or none yet
  Index heads = 0;            ///< how many have come in
};
inline std::size_t bytes_of(const FigureMap& map) {
  return sizeof(map) + static_cast<std::size_t>(map.values.size()) * sizeof(double);
}

/// What summaries of a dump's heads hold: metrics and their agreement over n candidates.
std::vector<FigureInfo> dump_figures(const MetricSet& metrics, Index n);
/// A map to be filled head by head.
FigureMap empty_map(FigureInfo figure, std::vector<Index> layers, Index n_kv);
/// Puts in the head's value of the map's figure. A head that the map does not have is left out.
void add(FigureMap& map, const HeadSummary& head);

/// Of two maps of one figure: the first less the second, NaN where either has no value. Empty where they do
/// not have the same heads.
std::optional<FigureMap> difference_map(const FigureMap& map, const FigureMap& minus);

/// What a result folder holds. Figures of its tables are read at once, those of maps/ one by one.
struct ResultFigures {
  std::vector<FigureInfo> figures;    ///< in the order of the menu: by group, then as the tables have them
  std::vector<std::string> problems;  ///< tables that could not be read, one line each
  std::map<std::string, Matrix<double>, std::less<>> from_tables;
  const FigureInfo* find(std::string_view name) const;
};
std::size_t bytes_of(const ResultFigures& figures);
ResultFigures result_figures(const ResultReader& results);
/// Throws InputError where there is no such figure or its file is bad.
FigureMap figure_map(const ResultReader& results, const ResultFigures& figures, std::string_view name);

struct HeadPlace {
  Index row = 0;  ///< of the map
  Index layer = 0, kv_head = 0;
  double value = 0;
};
/// All heads, the worst first, equal ones by layer and head, those without a value last.
std::vector<HeadPlace> worst_first(const FigureMap& map, bool larger_is_worse);
/// By the figure's own sense; where it has none, the largest first.
std::vector<HeadPlace> worst_first(const FigureMap& map);

/// Values on one side of a bound.
struct ValueFilter {
  bool below = false, equal = false;  ///< which side, and whether the bound belongs to it
  double bound = 0;
  bool takes(double value) const;
};
/// "< 0.8", ">=80%"; nothing where it is something else.
std::optional<ValueFilter> value_filter(std::string_view typed);

}  // namespace kvreplay::viewer
