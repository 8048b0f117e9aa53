#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/report/line_plot.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::report {

/// Two values of every item, called A and B, an item a row.
struct PairPlot {
  std::string id, title;
  Axis x;
  struct Row {
    std::string name;
    double a = 0, b = 0;   ///< NaN where there is none
    std::string key = {};  ///< the name in CSV, where it is another
  };
  std::vector<Row> rows;
};

std::string svg_of(const PairPlot& plot);
/// item, a, b, difference (b - a).
std::string csv_of(const PairPlot& plot);

/// Means with their intervals, an item a row, and under them the values that each is the mean of.
struct IntervalPlot {
  std::string id, title;
  Axis x;
  std::vector<std::string> samples;  ///< what the values of every row are of
  struct Row {
    std::string name;
    LineStyle style;
    std::ptrdiff_t n = 0;
    double mean = 0, low = 0, high = 0;  ///< NaN where there is none
    std::vector<double> values;          ///< one each of `samples`; NaN where there is none
    std::string key = {};                ///< the name in CSV, where it is another
  };
  std::vector<Row> rows;
  std::optional<double> line = {};  ///< a value to mark
};

/// A logarithmic axis where `log` and a mean is positive, else a linear one: it holds every value and mean,
/// and intervals as far as half their spread beyond them; what lies further is cut off with an arrow.
Axis interval_axis(std::string label, const std::vector<IntervalPlot::Row>& rows, bool log);
/// The rows with the best mean first, and their axis.
void order_rows(IntervalPlot& plot, Better better, std::string label, bool log);

std::string svg_of(const IntervalPlot& plot);
/// item, n, mean, ci_low, ci_high, and a column for each sample.
std::string csv_of(const IntervalPlot& plot);

}  // namespace kvreplay::report
