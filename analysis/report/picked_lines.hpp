#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/result_reader.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

using Lines = std::vector<std::vector<double>>;  // [line][entry]

/// Lines over shared x, the same under every choice but for their values: what lists of the page pick.
struct PickedLines {
  std::string name, heading, reading, note;
  std::vector<Pick> picks;
  std::vector<double> at;  ///< x of every point
  Axis x;
  std::vector<LinePlot::Line> lines;  ///< without values
  bool bridged = false;               ///< lines cross what has no value
  struct Choice {
    Lines values;  ///< one each of `lines`, NaN where there is none
    Axis y;
  };
  /// By the numbers of the options; the first options of all lists are there.
  std::map<std::vector<std::size_t>, Choice> choices;
  std::vector<const FigureFacts*> shows = {};
  std::string csv = {};  ///< where it is not a row for every choice, line and x
};

Figure figure_of(PickedLines drawn);

inline constexpr const char* kMedian = "median of all heads";

/// The median over the heads of every entry.
Lines medians_of(const std::vector<Lines>& heads);

/// Lines of every head over an index that arrays [layers, n_kv, n] have: the median of all heads first, any
/// head to pick, and one more list.
struct SeriesFigure {
  std::string name, heading, reading, x_label, y_label;
  bool share = false;   ///< values are divided by the first of their head, and lie between 0 and 1
  bool counts = false;  ///< on a linear axis from 0
  Pick second;          ///< the other list
  std::vector<std::string> heads, lines;

  /// The values of one line under one option of `second`. Throws InputError for another shape. Arrays of more
  /// than some sixty entries are reduced to evenly spaced entries, including the first and the last.
  void add(std::size_t option, std::size_t line, const ResultReader::Array& array,
           const ResultReader& results);

  std::vector<double> at;  ///< the entries that are taken
  /// [option][head][line][entry]
  std::vector<std::vector<Lines>> values;
  Index length = 0;  ///< entries that there are
};

/// Nothing where no array was added. Where the heads are too many for the page, it has the median alone.
std::optional<Figure> figure_of(const SeriesFigure& series);

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
std::optional<Figure> layer_lines(const Tables& tables, const MetricTable& table, const LayerLines& wanted);
/// A line a dump and one of their mean; the method is one more list.
std::optional<Figure> layer_lines(const OverDumpsReader& results, const LayerLines& wanted);

}  // namespace kvreplay::report
