#pragma once

#include "analysis/drawing/axis.hpp"

#include <string>
#include <vector>

namespace kvreplay::report {

/// Two values of every item, called A and B, an item a row.
struct PairPlot {
  std::string id, title;
  Axis x;
  struct Row {
    std::string name;
    double a = 0, b = 0;  ///< NaN where there is none
  };
  std::vector<Row> rows;
};

std::string svg_of(const PairPlot& plot);
/// item, a, b, difference (b - a).
std::string csv_of(const PairPlot& plot);

}  // namespace kvreplay::report
