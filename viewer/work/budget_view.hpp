#pragma once

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/budgets/loss_curve.hpp"
#include "viewer/work/desk.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What every head loses at every budget, and how each method divides a total among all heads. Every figure is
// that of `kvreplay budget` on all layers with the same options. In steps: each head's worth (head_worth),
// the curves once all heads are known (budget_curves), then a method's budgets at one total (budget_share).

namespace kvreplay::viewer {

struct BudgetSettings {
  BudgetOrder order = parse_order("snapkv", {});
  std::vector<BudgetDivision> methods = BudgetOptions{}.methods;
  BudgetSemantics semantics = BudgetSemantics::paper;
  double sigma = 0.8;                  ///< the total: compression ratio, between 0 and 1
  std::optional<Normalise> normalise;  ///< unset, like the next two: the semantics' own
  std::optional<double> floor;         ///< share of the prompt that every head keeps
  std::optional<Index> sinks, recent;  ///< lead every order
  bool linked = true;                  ///< the total is the desk's budget
  bool operator==(const BudgetSettings&) const = default;
  bool normalised() const {
    return normalise.value_or(kBudgetSemantics[semantics].normalise) == Normalise::layer;
  }
};
/// For sessions.
BoundOptions bound(BudgetSettings& settings);

/// One order and sigma, a case for each method. Throws InputError, one line, where the settings cannot be
/// followed.
BudgetPlan budget_view_plan(const BudgetSettings& settings, const Dump& dump);
/// What head_worth() depends on besides the head, and what budget_curves() depends on.
Key order_key(const BudgetPlan& plan);
Key curves_key(const BudgetPlan& plan);

/// A head's tokens in the order's order, most wanted first: 20 l bytes, of which 8 x 2 l are these numbers.
struct HeadWorth {
  std::vector<std::int32_t> order;  ///< [l], positions
  std::vector<double> worth;        ///< [l], oracle_importance
  std::vector<double> scores;       ///< [l], what ranks them, +infinity where pinned
};
HeadWorth head_worth(const HeadGroup<float>& group, const BudgetPlan& plan, JobControl& job);
/// L(0..l), not normalised: what one can show of a head while others are missing.
std::vector<double> loss_of(const HeadWorth& worth);
/// The curves of all heads: 16 l bytes a head besides the heads' own, which it shares.
struct BudgetCurves {
  Index layers = 0, n_kv = 0, l = 0;
  Index missing = 0;                                    ///< heads still unknown; then there are no curves
  std::vector<std::shared_ptr<const HeadWorth>> heads;  ///< [layers, n_kv], null where unknown
  std::optional<LossCurves> curves;
  std::optional<HullGreedy> greedy;
  BudgetProfile profile;  ///< of lu
};
/// The share of its tokens that a head keeps at sigma 0.01 .. 0.99 by a profile: [99].
std::vector<double> shares_kept(const BudgetProfile& profile, Index head);
/// `heads` [layers, n_kv], null where unknown.
BudgetCurves budget_curves(const BudgetPlan& plan, const DumpShape& shape,
                           std::vector<std::shared_ptr<const HeadWorth>> heads, JobControl& job);

/// One method's division of the total.
struct BudgetShare {
  std::string method;
  Index missing = 0;         ///< heads still unknown; then there are no budgets
  Budgets budgets;           ///< [layers, n_kv]
  std::vector<double> loss;  ///< [layers, n_kv]
  Index total = 0;           ///< sum of budgets: under published semantics not always what was asked for
  double total_loss = 0;
};
/// `which` is a number of plan.cases. `optimal` is exact and may take longer than the others; it cannot be
/// cancelled midway.
BudgetShare budget_share(const BudgetPlan& plan, std::size_t which, const BudgetCurves& curves,
                         JobControl& job);

std::size_t bytes_of(const HeadWorth& worth);
std::size_t bytes_of(const BudgetCurves& curves);
std::size_t bytes_of(const BudgetShare& share);

}  // namespace kvreplay::viewer
