#pragma once

#include "analysis/report/figure.hpp"
#include "analysis/report/line_plot.hpp"

#include <map>
#include <optional>
#include <string>
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

}  // namespace kvreplay::report
