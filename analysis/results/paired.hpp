#pragma once

#include "analysis/results/csv.hpp"
#include "analysis/results/figure_facts.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

// Two methods on the same prompts. A hard prompt raises the losses of both methods, so that their separate
// intervals overlap even if one method is better on every prompt. Differences are therefore computed within
// each prompt.

namespace kvreplay {

/// The form of a paired comparison of two values.
enum class PairedBy {
  ratio,      ///< by the natural logarithm of left / right: errors, which are positive and span decades
  difference  ///< by left - right: shares and correlations
};
/// The form that suits a figure's direction and scale; nothing if neither form does.
std::optional<PairedBy> paired_by(Better better, FigureScale scale);

/// Left against right over prompts.
struct Paired {
  PairedBy by = PairedBy::ratio;
  std::ptrdiff_t prompts = 0;  ///< with a value on both sides
  std::ptrdiff_t wins = 0,
                 losses = 0;  ///< of them, those in which left has the better value, and the worse one
  double mean = kNan;         ///< NaN where a ratio is 0 or infinite
  double sd = kNan;           ///< with n - 1; NaN below two prompts
  /// The ends of the mean's 95 % confidence interval and the two-sided p of no difference, both by Student's
  /// t with n - 1 degrees of freedom; NaN below kFewestPrompts. The interval of a difference is cut off at
  /// the largest distance that two values of the figure can have.
  double low = kNan, high = low, p = low;

  /// The mean and the interval's ends as they are read: times, or a difference.
  double center() const { return shown(mean); }
  double lower() const { return shown(low); }
  double upper() const { return shown(high); }

 private:
  double shown(double value) const;
};

/// `left` and `right` have a value for each prompt, NaN where there is none, of a figure that paired_by()
/// knows. Two zeros are a ratio of 1.
Paired paired(std::span<const double> left, std::span<const double> right, Better better, FigureScale scale);

/// The fields of a pair in a table: of log_ratio and difference the one that it has.
inline constexpr std::string_view kPairedColumns = "log_ratio,difference,low,high,wins,p";
void add_paired(CsvTable& csv, const Paired& paired, double p);

/// The p below which two methods differ significantly.
inline constexpr double kToldApart = 0.05;

/// Holm's adjustment of the p of several tests on the same data: if there is no difference at all, at most
/// one in twenty sets of tests has a p below 0.05. NaN are no tests.
std::vector<double> holm(std::span<const double> p);

/// For each of several differences that are tested together: the number of prompts at which it would be
/// significant in four of five tries, if means and standard deviations stay as they are. Holm's adjustment
/// applies: the k-th of m by p needs p below 0.05 / (m - k), and all before it must be significant too.
/// Nothing if there is no p, if the mean is 0, if more than 1,000 prompts are needed, or if one before it has
/// no answer.
std::vector<std::optional<std::ptrdiff_t>> prompts_needed(std::span<const Paired> asked);

// Student's distribution, for intervals and tests over a handful of prompts.

/// The confidence of every interval that the program states.
inline constexpr double kConfidence = 0.95;

/// The fewest prompts for an interval or a significant difference. Two or three values that are close by
/// chance would look certain, and a skewed distribution could not be recognized.
inline constexpr std::ptrdiff_t kFewestPrompts = 4;

/// The t such that |T| <= t has probability `share` (0 < share < 1), where T has Student's distribution with
/// `freedom` >= 1 degrees of freedom: to within a few units in the last place of what the distribution
/// function resolves. O(freedom) time, so `freedom` is capped at 10^6, beyond which t changes in the seventh
/// digit only.
double student_t(double share, std::ptrdiff_t freedom);

/// The t of the 95 % confidence interval of the mean of n >= 2 values.
double interval_t(std::ptrdiff_t n);

/// P(|T| >= t), to 1e-15 or so: the two-sided p of a mean that lies t standard errors from 0; NaN of NaN.
double student_p(double t, std::ptrdiff_t freedom);

}  // namespace kvreplay
