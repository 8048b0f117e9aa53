#pragma once

#include "analysis/results/csv.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// The mean of a figure over dumps, with its interval.
struct OverDumps {
  Index n = 0;  ///< dumps in which the figure has a value
  /// NaN if n is 0. The mean of correlations is formed by Fisher's z (tanh of the mean of atanh) while every
  /// value lies within -1 and 1; else it is the arithmetic mean.
  double mean = kNan;
  double sd = kNan;  ///< with n - 1; NaN below two values
  /// Set if a figure spans decades (FigureScale::log) and is positive in every dump; else NaN.
  double geometric_mean = kNan;
  /// The ends of the 95 % confidence interval by Student's t with n - 1 degrees of freedom. If there is a
  /// geometric mean, the interval is that of the geometric mean, on the scale of logarithms; else that of the
  /// mean, for correlations on the scale of z. Intervals without such a scale are cut off at the figure's
  /// range, which contains the true mean: no coverage is lost. NaN below kFewestPrompts values.
  double low = kNan, high = low;

  /// The mean that the interval is of.
  double center() const;
};

/// Welford's mean and variance of the values that are not NaN, in the order of the calls.
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

/// The mean of values, some of which may be NaN.
OverDumps over_dumps(std::span<const double> values, FigureScale scale);

/// One table of several result folders, figure by figure. Layers and heads are never mixed: each mean is that
/// of a figure of one head, one layer or the whole model over the dumps.
class TableOverDumps {
 public:
  explicit TableOverDumps(Table table);

  /// Adds a folder's table, if it has it.
  void add(const ResultReader& results);

  /// Figures (or only those of the model) that at least two dumps have, in the order of the first dump, then
  /// of the next one.
  struct Row {
    std::vector<std::string> keys;
    OverDumps over;
  };
  std::vector<Row> rows(bool of_model = false) const;
  /// Writes `<table>_over_dumps.csv`: the keys and kMeanColumns. Returns the number of rows; without rows no
  /// file is written.
  std::size_t write(const ResultFolder& folder) const;
  /// The main figures of the model as text, means with their intervals; empty if there are none.
  std::string report() const;

 private:
  using Keys = std::vector<std::string>;
  struct Mean {
    const Keys *scope, *metric;  // of places_
    RunningMean mean;
    Index dumps = 0;  // dumps that have a row of it
  };

  Table table_;
  std::vector<Mean> means_;
  std::map<Keys, std::map<Keys, std::size_t>> places_;  // by the keys of a metric, then layer and kv_head
};

/// "0.0129 [0.011, 0.0152]", "0.0129" without an interval, "-" for NaN.
std::string mean_text(const OverDumps& over);
/// "[0.011, 0.0152]"
std::string interval_text(double low, double high);
/// Three digits; "442" and "1532", not "1.53e+03".
std::string short_number(double value);

/// A finished folder over several dumps. Throws InputError, one line with the path, if a file is missing or
/// invalid.
class OverDumpsReader {
 public:
  /// True if a folder's summary.json says that its results are over several dumps.
  static bool is_over_dumps(const std::filesystem::path& folder);

  /// Reads summary.json and those of the dumps' folders. Throws if a folder is unfinished, is missing, or
  /// belongs to another dump than the summary names.
  explicit OverDumpsReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Json& summary() const { return summary_; }
  /// The names of the dumps' folders, in the order the dumps were given.
  const std::vector<std::string>& names() const { return names_; }
  /// The results of each, in that order; never empty.
  const std::vector<ResultReader>& dumps() const { return dumps_; }
  /// Results with the profile of the other dumps, in that order too; empty for a dump without such results.
  const std::vector<std::optional<ResultReader>>& left_one_out() const { return left_one_out_; }

  /// A figure of the whole model.
  struct Figure {
    std::vector<std::string> key;  ///< of figure_keys(), without layer and kv_head
    OverDumps over;
    std::vector<double> dumps;  ///< one each; NaN where a dump has no value
  };
  /// The figures of the model in `<table>_over_dumps.csv`, each with its values from the dumps' own tables.
  /// Behind them stand the median heads of errors and the figures measured with the model in the loop in at
  /// least two dumps. None if the folder has no such file. Throws if a mean does not fit the dumps' values.
  std::vector<Figure> model_figures(Table table) const;

 private:
  /// The results of a dump in a subfolder. Throws if they belong to another dump than the summary names.
  ResultReader results_in(const std::filesystem::path& below, const std::string& fingerprint) const;
  std::vector<Figure> means(Table table, const std::filesystem::path& path) const;
  std::filesystem::path folder_;
  Json summary_;
  std::vector<std::string> names_;
  std::vector<ResultReader> dumps_;
  std::vector<std::optional<ResultReader>> left_one_out_;
};

}  // namespace kvreplay
