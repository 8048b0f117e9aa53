#pragma once

#include "analysis/budgets/allocation.hpp"
#include "analysis/budgets/budget_options.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/policy.hpp"
#include "sim/head_matrix.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

// From what a user asks for to the list of head budgets to compute.

namespace kvreplay {

/// The caches that the layers of a run read. Budgets are shared between caches: one that several layers read
/// has its budget and its loss once, in the rows of the first of them.
class CacheRows {
 public:
  CacheRows() = default;
  CacheRows(const Dump& dump, std::span<const Index> layers) {
    for (const Index layer : layers) {
      const auto is_same = [&](Index other) { return dump.cache_of(other) == dump.cache_of(layer); };
      first_.push_back(std::ranges::find_if(layers, is_same) - layers.begin());
      if (first_.back() + 1 == std::ssize(first_)) own_.push_back(first_.back());
    }
  }

  Index layers() const { return std::ssize(first_); }
  Index caches() const { return std::ssize(own_); }
  /// The place among the layers of the first that reads the cache of the one at `at`.
  Index first(Index at) const { return first_[static_cast<std::size_t>(at)]; }
  /// The number of its cache.
  Index cache(Index at) const { return std::ranges::find(own_, first(at)) - own_.begin(); }
  bool is_first(Index at) const { return first(at) == at; }

  /// [caches n_kv, columns] of [layers n_kv, columns].
  Matrix<double> of_caches(const Matrix<double>& rows) const {
    if (own_.size() == first_.size()) return rows;
    const Index n_kv = rows.rows() / std::ssize(first_);
    Matrix<double> kept(caches() * n_kv, rows.cols());
    for (Index c = 0; c < caches(); ++c)
      kept.middleRows(c * n_kv, n_kv) = rows.middleRows(own_[static_cast<std::size_t>(c)] * n_kv, n_kv);
    return kept;
  }
  /// [layers, width] of [caches, width]: a layer's own, and where an earlier one has its cache that one's, or
  /// zeros.
  template <class T>
  std::vector<T> of_layers(std::span<const T> caches, bool repeat) const {
    const std::size_t width = caches.size() / std::max<std::size_t>(own_.size(), 1);
    std::vector<T> all;
    for (Index at = 0; at < std::ssize(first_); ++at) {
      const auto c = static_cast<std::size_t>(cache(at));
      if (repeat || is_first(at))
        all.insert(all.end(), caches.begin() + c * width, caches.begin() + (c + 1) * width);
      else
        all.resize(all.size() + width);
    }
    return all;
  }

 private:
  std::vector<Index> first_,
      own_;  // places among the layers: of the first reader of each, and of the first readers
};

/// A ranking of the candidates, once, whatever the budget.
struct CandidateOrder {
  std::string name;
  EvictionRule rule;  ///< its pins come first in the order
  Index lower = 0;    ///< tokens that every head keeps: the floor and what is pinned
  Index pinned() const { return rule.sinks + rule.recent; }
  std::string file_name() const { return file_word(name); }
};

/// One allocation: budgets of all heads.
struct BudgetCase {
  std::size_t order = 0;
  BudgetDivision division = BudgetMethod::uniform;
  double sigma = 0;             ///< in the caches that hold most
  std::optional<Index> tokens;  ///< budget per head, if it was given in tokens
  std::string label;            ///< the budget as given: sigma, or tokens a head
};

/// Caches that hold the same number of the prompt's tokens. A budget is shared only within such a group, as a
/// share of the tokens that its caches hold.
struct EqualCaches {
  Index held = 0;
  std::vector<Index> caches;           ///< cache numbers
  std::vector<CandidateOrder> orders;  ///< for as many candidates as these caches hold
};

struct BudgetPlan {
  std::vector<CandidateOrder> orders;  ///< for the caches that hold most
  std::vector<EqualCaches> equal;      ///< groups in descending order of `held`
  std::vector<BudgetCase> cases;
  Semantics divides = Semantics::paper;                ///< the semantics of pyramid, ada and profile
  TokenMetric curve = TokenMetric::oracle_importance;  ///< the metric that a loss curve sums
  bool normalise_by_layer = false;
  std::vector<BudgetProfile> profiles;  ///< an order each: the mean of those given, of the run's caches
  bool profiles_by_order = false;       ///< else they are one
  std::vector<GivenArray<double>> scores;
  CacheRows caches;  ///< of the run's layers
  RowRange future;
  LossRows losses;
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;
};

/// Throws InputError for a sigma outside (0, 1), more pins or floor than a budget, a dump
/// without decoding steps, a score that needs what the dump lacks, and a file of the wrong shape. `layers`
/// are those of the run.
BudgetPlan budget_plan(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers);

/// The loss curves of one order, and the greedy division of every group of equal caches: made once for any
/// number of cases.
class OrderCurves {
 public:
  /// `all`: of all caches' heads, [caches n_kv].
  OrderCurves(const BudgetPlan& plan, std::size_t order, Index n_kv, LossCurves all);

  const LossCurves& all() const { return all_; }
  Index n_kv() const { return n_kv_; }
  /// Curves of the group's heads, over the tokens that its caches hold. `group`: a place in
  /// BudgetPlan::equal.
  const LossCurves& curves(std::size_t group) const { return parts_.empty() ? all_ : parts_[group]; }
  /// Greedy division by curves(group), from the order's lower on.
  const HullGreedy& greedy(std::size_t group) const { return greedy_[group]; }
  /// Bytes besides those of all().
  std::size_t bytes() const;

 private:
  Index n_kv_;
  LossCurves all_;
  std::vector<LossCurves> parts_;  ///< empty if one group holds the whole prompt: its curves are all_
  std::vector<HullGreedy> greedy_;
};

/// The budgets of a case, by the curves of its order: [layers, n_kv], nothing for a layer that reads the
/// cache of an earlier one. `scores` [layers n_kv, l] as ada() has them.
Allocation allocate(const BudgetPlan& plan, const BudgetCase& which, const OrderCurves& curves,
                    const Matrix<double>& scores);
/// LU-KV's division by the same curves at every compression ratio.
BudgetProfile lu_profile(const BudgetPlan& plan, std::size_t order, const OrderCurves& curves);
/// A profile over caches as one over the run's layers; layers that share a cache have equal rows.
BudgetProfile of_layers(const BudgetPlan& plan, const BudgetProfile& caches);

/// A head's candidates, highest score first. All [l]; positions that its cache does not hold come last.
struct RankedTokens {
  std::vector<std::int32_t> order;  ///< positions
  std::vector<double> scores;       ///< scores in this order, never rising; +infinity where pinned
  std::vector<double> worth;        ///< importance that the plan's curve sums; empty from head_orders()
};

/// A rule's: what it pins (first positions, then the most recent), then the others by pooled score, equal
/// ones from the front.
RankedTokens ranked_tokens(const EvictionRule& rule, const Vector<double>& scores);

/// Every order of the plan on one head group; `n_kv` KV heads a layer.
template <class T>
std::vector<RankedTokens> head_orders(const HeadGroup<T>& group, const BudgetPlan& plan, Index n_kv,
                                      const Compute& compute);
/// As head_orders(), with the importance of every token.
template <class T>
std::vector<RankedTokens> head_worths(const HeadGroup<T>& group, const BudgetPlan& plan, Index n_kv,
                                      const Compute& compute);

}  // namespace kvreplay
