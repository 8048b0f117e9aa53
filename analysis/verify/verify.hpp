#pragma once

#include "analysis/tokens/token_table.hpp"
#include "data/dump.hpp"
#include "sim/backend.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay {

struct VerifyOptions {
  Index tokens = 64;  ///< sampled per head for brute force; 0: all
  Index window = 32;
  std::vector<Index> layers;
  /// Called at the start and after every head group.
  std::function<void(Index done, Index total)> on_progress;
};

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

  const Tolerance& tolerance() const { return tolerance_; }
  double worst_of_largest() const { return worst_of_largest_; }
  double worst_relative() const { return worst_relative_; }
  /// One line for every head and metric that misses the tolerance: where, what, by how much.
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  Tolerance tolerance_;
  double worst_of_largest_ = 0;
  double worst_relative_ = 0;
  std::vector<std::string> failures_;
};

/// The verdict on one thing that was checked.
struct Check {
  std::string name;     ///< "closed forms"
  std::string covered;  ///< "12 heads x 64 tokens x 6 metrics"
  std::string worst;    ///< the largest deviation and its tolerance, or why the check was left out
  bool skipped = false;
  std::vector<std::string> failures;
  Json figures;  ///< the same as numbers
  bool ok() const { return failures.empty(); }
};

struct VerifyResult {
  std::vector<Check> checks;
  AgreementTable table;  ///< of the float64 metrics
  bool ok() const;
};

/// Checks, head group by head group: the closed forms against recomputed attention on sampled tokens, the
/// backend's float32 (unless the precision is f64) against float64 on all, and the replayed outputs against
/// the dump's own. Memory: one head group in both precisions.
VerifyResult verify(const Dump& dump, const VerifyOptions& options, const Compute& compute);

/// `count` of the positions 0..l-1, ascending: first and last, `wanted`, and an even spread. All of them for
/// 0.
std::vector<Index> sampled_tokens(Index l, Index count, const std::vector<Index>& wanted);

/// What a backend's float32 is called: "float32", "float32 on cuda".
std::string judged_float32(const Backend& backend);

/// Relative L2 error allowed between a replayed output and o.npy of this type: what rounding o, and the
/// model's own arithmetic in that type, explains.
double replay_tolerance(Dtype dtype);

}  // namespace kvreplay
