#pragma once

#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/result_folder.hpp"

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay {

/// The mean of a figure over dumps, and how sure it is.
struct OverDumps {
  Index n = 0;  ///< dumps in which the figure has a value
  /// NaN where n is 0. Of correlations by Fisher's z, tanh of the mean of atanh, while every one lies within
  /// -1 and 1; else the plain one.
  double mean = std::numeric_limits<double>::quiet_NaN();
  double sd = std::numeric_limits<double>::quiet_NaN();  ///< with n - 1; NaN below two values
  /// Of a figure that spans decades (FigureScale::log) and is positive in every dump; else NaN.
  double geometric_mean = std::numeric_limits<double>::quiet_NaN();
  /// The ends of the 95 % confidence interval by Student's t with n - 1 degrees of freedom: of the geometric
  /// mean, on the scale of logarithms, where there is one, else of the mean, of correlations on the scale of
  /// z. What has no such scale is cut off at the figure's range, in which the true mean lies, too: that loses
  /// no coverage. NaN below kFewestPrompts values.
  double low = std::numeric_limits<double>::quiet_NaN(), high = low;

  /// The mean that the interval is of.
  double center() const;
};

/// Welford's mean and variance of the values that are no NaN, in the order they come in.
class RunningMean {
 public:
  explicit RunningMean(FigureScale scale = FigureScale::linear) : scale_(scale) {}
  void add(double value);
  OverDumps result() const;

 private:
  struct Moments {
    Index n = 0;
    double mean = 0, squares = 0;
    void add(double value);
    double sd() const;
    double half_interval() const;
  };

  Moments values_, scaled_;  // scaled: logarithms, or Fisher's z, of those that have one
  double infinite_ = 0;
  FigureScale scale_;
};

/// One table of several result folders, figure by figure, without the layers' and heads' being mixed: all
/// that is averaged is a figure of one head, one layer or the whole model over the dumps.
class TableOverDumps {
 public:
  explicit TableOverDumps(Table table);

  /// Adds a folder's table, if it has it. Throws InputError where a row is there twice.
  void add(const ResultReader& results);

  /// Figures that at least two dumps have, in the order of the first dump, then of the next one.
  struct Row {
    std::vector<std::string> keys;
    OverDumps over;
  };
  std::vector<Row> rows(std::optional<Level> level = {}) const;
  /// As `<table>_over_dumps.csv`: the keys and kMeanColumns. Returns the number of rows; no file is written
  /// where there are none.
  std::size_t write(const ResultFolder& folder) const;
  /// The main figures of the model as text, means with their intervals; empty where there are none.
  std::string report() const;

 private:
  struct Figure {
    RunningMean mean;
    Index dumps = 0;   // that have a row of it
    Index latest = 0;  // the number of the last of them
  };
  Table table_;
  std::vector<std::string> keys_;
  Names names_;
  std::vector<Figure> figures_;  // by the names' numbers
  Index dumps_ = 0;
};

/// "0.0129 [0.011, 0.0152]", "0.0129" without an interval, "-" for NaN.
std::string mean_text(const OverDumps& over);
/// "[0.011, 0.0152]"
std::string interval_text(double low, double high);
/// Three digits; "442" and "1532", not "1.53e+03".
std::string short_number(double value);

}  // namespace kvreplay
