#pragma once

#include "analysis/options/option.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay {

/// The verdict on one thing that was checked.
struct Check {
  std::string name = {};     ///< "closed forms"
  std::string covered = {};  ///< "12 heads x 64 tokens x 6 metrics"
  std::string worst = {};    ///< the largest deviation and its tolerance, or why the check was left out
  bool skipped = false;
  std::vector<std::string> failures = {};
  Json figures = {};  ///< the same as numbers
  bool ok() const { return failures.empty(); }
};

/// The larger of two deviations; NaN is worse than any, and has no sign: "-nan" says nothing.
inline double worse(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : std::max(a, b);
}

/// A check of which nothing was computed.
inline Check left_out(const std::string& name, const std::string& why) {
  return {.name = name, .worst = "left out: " + why, .skipped = true};
}

/// |x - reference| may be `of_largest` of the largest |reference| of its head and metric, and `relative` of
/// |reference| itself on every token above `floor` of the largest.
struct Tolerance {
  double of_largest = 0;
  double relative = 0;
  double floor = 0;
  double tiny = 0;
};
/// Closed forms in float64: a few hundred roundings of 1e-16, times the cancellation that centring leaves.
inline constexpr Tolerance kClosedFormTolerance = {1e-9, 1e-6, 1e-12, 1e-290};
/// float32 sums over thousands of rows of terms that are good to 1e-6 each.
inline constexpr Tolerance kFloat32Tolerance = {1e-4, 1e-3, 1e-6, 1e-30};

/// How far one set of values is from another, over all heads.
class ValueDistance {
 public:
  explicit ValueDistance(Tolerance tolerance) : tolerance_(tolerance) {}

  /// One head's values of a metric at the positions `tokens`. Two numbers of at most `rounding` are both 0.
  void add(Index layer, Index kv_head, TokenMetric metric, const std::vector<Index>& tokens,
           const std::vector<double>& values, const std::vector<double>& reference, double rounding = 0);
  /// What was found of other heads, after these.
  void merge(const ValueDistance& later);

  double worst_of_largest() const { return worst_of_largest_; }
  double worst_relative() const { return worst_relative_; }
  /// One line for every head and metric that misses the tolerance: where, what, by how much.
  const std::vector<std::string>& failures() const { return failures_; }
  Check check(const std::string& name, const std::string& covered) const;

 private:
  Tolerance tolerance_;
  double worst_of_largest_ = 0;
  double worst_relative_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace kvreplay
