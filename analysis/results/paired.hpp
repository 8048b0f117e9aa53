#pragma once

#include "analysis/results/csv.hpp"
#include "analysis/results/figure_facts.hpp"

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

// Two methods on the same prompts. A hard prompt raises what both lose, so intervals of each alone overlap
// where one is better on every prompt: what is formed here are differences within a prompt.

namespace kvreplay {

/// How two values of a figure are set against each other.
enum class PairedBy {
  ratio,      ///< by the natural logarithm of left / right: errors, which are positive and span decades
  difference  ///< by left - right: shares and correlations
};
/// What suits a figure's direction and scale; nothing where neither does.
std::optional<PairedBy> paired_by(Better better, FigureScale scale);

/// Left against right over prompts.
struct Paired {
  PairedBy by = PairedBy::ratio;
  std::ptrdiff_t prompts = 0;  ///< with a value on both sides
  std::ptrdiff_t wins = 0,
                 losses = 0;  ///< of them, those in which left has the better value, and the worse one
  double mean = std::numeric_limits<double>::quiet_NaN();  ///< NaN where a ratio is 0 or infinite
  double sd = std::numeric_limits<double>::quiet_NaN();    ///< with n - 1; NaN below two prompts
  /// The ends of the mean's 95 % confidence interval and the two-sided p of no difference, both by Student's
  /// t with n - 1 degrees of freedom; NaN below kFewestPrompts. Of a difference the ends go no further than
  /// two values of the figure can lie apart.
  double low = std::numeric_limits<double>::quiet_NaN(), high = low, p = low;

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
void add_paired(CsvFile& csv, const Paired& paired, double p);

/// The p below which two methods are told apart.
inline constexpr double kToldApart = 0.05;

/// Holm's adjustment: the p of each of several questions asked of the same data, so that one in twenty sets
/// of questions without any difference has a p below 0.05 in it. NaN are no questions.
std::vector<double> holm(std::span<const double> p);

/// How many prompts would tell each of several differences that are asked at once from none, in four of five
/// tries, if means and spreads stay what they are: by Holm as well, so that the k-th of m by p needs p below
/// 0.05 / (m - k), and those before it to be told too. Nothing where there is no p or the mean is 0, where it
/// takes more than 1,000, and where one before it has no answer.
std::vector<std::optional<std::ptrdiff_t>> prompts_needed(std::span<const Paired> asked);

}  // namespace kvreplay
