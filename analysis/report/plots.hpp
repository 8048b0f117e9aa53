#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/plot_frame.hpp"
#include "analysis/results/metric_table.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// Style of a line: colours 0..7 of figure.css, dashes 0..5 and markers 0..5; thin for lines behind others.
struct LineStyle {
  int color = 0, dash = 0, marker = 0;
  bool thin = false;
};

/// Styles by the parts of a name "BASE+SCORE": colour and marker by the base, the dash by the score, each
/// numbered in order of first occurrence.
std::vector<LineStyle> styles_by_name(const std::vector<std::string>& names);

/// Lines over shared x, each named beside the plot: at the height of its end, or with `listed` in order. NaN
/// is a gap; `bridged` lines cross it.
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

/// The plot with its lines' styles_by_name(); thin lines stay thin.
LinePlot styled(LinePlot plot, const std::vector<std::string>& names);

/// The settings by the numbers that they begin with.
std::vector<std::pair<double, std::string>> by_number(const std::vector<std::string>& settings);
/// Figures of the model by a setting, a line for each value of the key `item`; of errors over heads the
/// median head's, too.
struct ModelPlots {
  std::string name, heading, reading;
  std::vector<const FigureFacts*> figures;  ///< in the order to offer them
  std::string_view item, setting;
  /// Keys of which every combination is a picture of its own, the last one changing fastest; and their lists.
  std::vector<std::string_view> keys;
  std::vector<std::string> labels;
  std::size_t first_lists = 0;  ///< so many of the last keys have their lists before the others
  std::string x;
  Index prompt = 0;  ///< l: x is how many of these tokens are kept; else the numbers that settings begin with
  bool median_heads = true;
  bool window_first = false;  ///< rows of the window before those of the decoding steps
  /// The title of a figure under values of `keys` as their lists have them.
  std::function<std::string(const std::string& figure, const std::vector<std::string>& values)> title;
};
inline constexpr const char* kTokensKept = "tokens kept of each head";
/// Nothing where the table has no such figures.
std::optional<Figure> model_figure(const MetricTable& table, const ModelPlots& wanted);

/// The plot with its numbers, which the page's script shows under the mouse.
std::string svg_of(const LinePlot& plot);
/// x, line, y.
std::string csv_of(const LinePlot& plot);

/// One point a token.
struct ScatterPlot {
  std::string id, title;
  Axis x, y;
  std::vector<double> tokens;  ///< the position that each point is of
  std::vector<double> across, up;
  std::string corner;  ///< text in the upper left corner
};

/// Square: both axes carry the same tokens.
PlotFrame scatter_frame();
std::string svg_of(const ScatterPlot& plot);
/// token, x, y.
std::string csv_of(const ScatterPlot& plot);

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
  std::vector<std::string> samples;  ///< names of the samples in every row
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
