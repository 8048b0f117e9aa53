#pragma once

#include "analysis/report/picked_lines.hpp"
#include "analysis/results/result_reader.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay::report {

inline constexpr const char* kMedian = "median of all heads";

/// The median over the heads of every entry.
Lines medians_of(const std::vector<Lines>& heads);

/// Lines of every head over an index that arrays [layers, n_kv, n] have: the median of all heads first, any
/// head to pick, and one more list.
struct SeriesFigure {
  std::string name, heading, reading, x_label, y_label;
  bool share = false;  ///< values are divided by the first of their head, and lie between 0 and 1
  Pick second;         ///< the other list
  std::vector<std::string> heads, lines;

  /// The values of one line under one option of `second`. Throws InputError where the shape is another. Of
  /// more than some sixty entries evenly spaced ones are taken, the first and the last among them.
  void add(std::size_t option, std::size_t line, const ResultReader::Array& array,
           const ResultReader& results);

  std::vector<double> at;  ///< the entries that are taken
  /// [option][head][line][entry]
  std::vector<std::vector<Lines>> values;
  Index length = 0;  ///< entries that there are
};

/// Nothing where no array was added. Where the heads are too many for the page, it has the median alone.
std::optional<Figure> figure_of(const SeriesFigure& series);

}  // namespace kvreplay::report
