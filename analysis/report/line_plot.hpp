#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/results/figure_table.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// How a line looks: colours 0..7 of figure.css, dashes 0..5 and markers 0..5; thin where it stands behind
/// others.
struct LineStyle {
  int color = 0, dash = 0, marker = 0;
  bool thin = false;
};

/// By the parts of a name "BASE+SCORE": colour and marker by the base, the dash by the score, each by the
/// order in which it first comes.
std::vector<LineStyle> styles_by_name(const std::vector<std::string>& names);

/// Lines over shared x, each named beside the plot: at the height of its end, or with `listed` in order. NaN
/// is a gap; of `bridged` lines one that the line crosses.
struct LinePlot {
  std::string id, title;
  Axis x, y;
  std::vector<double> at;  ///< x of every point
  struct Line {
    std::string name;
    LineStyle style;
    std::vector<double> values;  ///< one each of `at`
    std::string key = {};        ///< the name in CSV, where it is another
    bool markers = true;
  };
  std::vector<Line> lines;
  bool listed = false;
  bool bridged = false;
};

/// The settings by the numbers that they begin with.
std::vector<std::pair<double, std::string>> by_number(const std::vector<std::string>& settings);
/// A figure of the model by a setting: a line for each value of the key `item`, at the values that the key
/// `setting` has there; or the median head's in its place. Without a name, a title and the label of x.
LinePlot model_plot(const FigureTable& table, const Wanted& common, const FigureFacts& figure,
                    std::string_view item, std::string_view setting,
                    const std::vector<std::pair<double, std::string>>& at, bool of_median_head = false);

/// With the numbers beside it, for what the page's script says under the mouse.
std::string svg_of(const LinePlot& plot);
/// x, line, y.
std::string csv_of(const LinePlot& plot);

}  // namespace kvreplay::report
