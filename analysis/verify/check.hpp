#pragma once

#include "analysis/options/option.hpp"
#include "sim/attention.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
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

/// Distance between two sets of values, over all heads.
class ValueDistance {
 public:
  explicit ValueDistance(Tolerance tolerance) : tolerance_(tolerance) {}

  /// One head's values of a metric at the positions `tokens`. Two numbers of at most `rounding` are both 0.
  void add(Index layer, Index kv_head, TokenMetric metric, const std::vector<Index>& tokens,
           const std::vector<double>& values, const std::vector<double>& reference, double rounding = 0);
  /// Adds the results of other heads, behind these.
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

/// A closed form, what it claims to be the effect of, and on which rows.
struct ClosedForm {
  TokenMetric metric;
  TokenChange change;
  RowRange rows;
};
/// Closed forms of the metrics that are `available`.
std::vector<ClosedForm> closed_forms(const DumpShape& shape, const MetricSet& available, Index window);

/// `count` of the positions 0..l-1, ascending: first and last, `wanted`, and an even spread. All of them for
/// 0.
std::vector<Index> sampled_tokens(Index l, Index count, const std::vector<Index>& wanted);

/// The tokens at which each of the forms is judged: all for a count of 0; else of sampled_tokens() the first,
/// the last, the form's own of `wanted` [forms], and those that fall to it as the others are dealt out, from
/// form number `turn` on: each of them is some form's, and with turns 0, 1, 2, ... every form's.
std::vector<std::vector<Index>> dealt_tokens(Index l, Index count, const std::vector<Index>& wanted,
                                             Index turn);

/// The effect of each form's change on each of its tokens, from recomputed attention, summed over the form's
/// rows and the query heads.
std::vector<std::vector<double>> brute_force_sums(const HeadGroup<double>& group,
                                                  const std::vector<ClosedForm>& forms,
                                                  const std::vector<std::vector<Index>>& tokens,
                                                  Workers& workers);

/// So many rows of each row set: brute force is slow.
inline constexpr Index kVerifiedRows = 16;
/// Deviations that are allowed, as shares of the full output's norm.
inline constexpr double kOutputTolerance = 1e-9, kFloat32OutputTolerance = 1e-4;

/// Name of a backend's float32: "float32", "float32 on cuda".
std::string judged_float32(const Backend& backend);

/// The norm of the difference between vectors in panels and others in rows, over all query heads.
template <class T>
double panel_distance(const PanelRows<T>& panels, const std::vector<Matrix<double>>& rows);

inline double share_of(double part, double of) { return part == 0 ? 0 : part / of; }

/// The references of outputs on `rows` (not empty), a few rows at a time on all threads.
std::vector<OutputChangeReference> references_in_parallel(
    RowRange rows, Workers& workers,
    const std::function<std::vector<OutputChangeReference>(RowRange)>& reference);

/// Common part of checks of outputs against brute force: the rows, the largest deviations, the failures, the
/// verdict.
class OutputCheck {
 public:
  OutputCheck(const Dump& dump, Index window, const Compute& compute);

  /// Adds the results of other heads, behind these.
  void merge(const OutputCheck& later);

 protected:
  /// Results of one type on one backend.
  struct Judged {
    std::string type;  ///< "float32 on cuda"
    const char* key;   ///< of the worst deviation in Check::figures
    double worst = 0;
    bool seen = false;
  };

  /// `what` is "channels: layer 2 KV head 0: error of the logits 0.1 off", the deviation in it.
  void judge(const std::string& what, double deviation, double tolerance, Judged& judged);
  void count_head() { ++heads_; }
  Index rows() const { return window_.count() + future_.count(); }
  /// `covered`: what every row was checked on; `norm`: what deviations are shares of; `missing`: why there
  /// are no rows.
  Check check(const char* name, const char* covered, const char* norm, const char* missing) const;

  Compute compute_;
  RowRange window_, future_;
  Judged f64_, f32_, on_device_;

 private:
  Index heads_ = 0;
  std::vector<std::string> failures_;
};

/// The exact error of kept sets against brute-force masked attention: every other token, the most costly
/// tenth, all but the most costly hundredth (what holds the rows together is gone), everything, nothing; on
/// the window and on the first decoding steps. Deviations are norms over rows and query heads of the
/// difference between the two changes of the outputs, relative to that of the full outputs. What is judged in
/// float32 is the backend's.
class KeptSetCheck : public OutputCheck {
 public:
  KeptSetCheck(const Dump& dump, Index window, const Compute& compute);

  /// `cost`: what losing each token costs, [l].
  void add(const HeadGroup<double>& group, const HeadGroup<float>* single, const Vector<double>& cost);
  Check check() const;

 private:
  void compare(const HeadGroup<double>& group, const HeadGroup<float>* single, RowRange rows,
               const std::vector<KeptSet>& sets);
};

}  // namespace kvreplay
