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
  Index n = 0;                                             ///< dumps in which the figure has a value
  double mean = std::numeric_limits<double>::quiet_NaN();  ///< NaN where n is 0
  double sd = std::numeric_limits<double>::quiet_NaN();    ///< with n - 1; NaN below two values
  /// Half of the 95 % confidence interval of the mean, by Student's t with n - 1 degrees of freedom; NaN
  /// below two values.
  double half_interval = std::numeric_limits<double>::quiet_NaN();
};

/// Welford's mean and variance of the values that are no NaN, in the order they come in.
class RunningMean {
 public:
  void add(double value);
  OverDumps result() const;

 private:
  Index n_ = 0;
  double mean_ = 0, squares_ = 0, infinite_ = 0;
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
  /// As `<table>_over_dumps.csv`: the keys, n, mean, sd, ci_low, ci_high. Returns the number of rows; no file
  /// is written where there are none.
  std::size_t write(const ResultFolder& folder) const;
  /// The main figures of the model as text, means +- half an interval; empty where there are none.
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

/// "0.0129 ± 0.0021", "0.0129" without an interval, "-" for NaN.
std::string mean_text(const OverDumps& over);

/// The t such that |T| <= t has probability `share` (0 < share < 1), where T has Student's distribution with
/// `freedom` >= 1 degrees of freedom: to within a few units in the last place of what the distribution
/// function resolves. O(freedom) time, so `freedom` is capped at 10^6, beyond which t changes in the seventh
/// digit only.
double student_t(double share, std::ptrdiff_t freedom);

}  // namespace kvreplay
