#pragma once

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/budgets/loss_curve.hpp"
#include "analysis/results/result_reader.hpp"
#include "viewer/questions/job_queue.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

class Run;
struct PanelContext;

// Loss of every head at every budget, and the division of a total among all heads by each method. Every
// metric equals that of `kvreplay budget` on all layers with the same options. Steps: the worth of each head
// (head_worth); the curves, once all heads are known (budget_curves); the budgets of a method at one total
// (budget_share).

struct BudgetSettings {
  BudgetOrder order = parse_order("snapkv", {});
  std::vector<BudgetDivision> methods = BudgetOptions{}.methods;
  BudgetSemantics semantics = BudgetSemantics::paper;
  double sigma = 0.8;                  ///< the total: compression ratio, between 0 and 1
  std::optional<Normalise> normalise;  ///< unset, like the next two: the semantics' own
  std::optional<double> floor;         ///< share of the prompt that every head keeps
  std::optional<Index> sinks, recent;  ///< lead every order
  bool linked = true;                  ///< the total is the queue's budget
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
/// Keys of everything that head_worth() (besides the head) and budget_curves() depend on.
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
  std::vector<std::shared_ptr<const HeadWorth>> heads;  ///< [layers, n_kv]
  OrderCurves of_order;
  BudgetProfile profile;  ///< of lu
};
/// The share of its tokens that a head keeps at sigma 0.01 .. 0.99 by a profile: [99].
std::vector<double> shares_kept(const BudgetProfile& profile, Index head);
/// `heads` [layers, n_kv].
BudgetCurves budget_curves(const BudgetPlan& plan, const DumpShape& shape,
                           std::vector<std::shared_ptr<const HeadWorth>> heads, JobControl& job);

/// One method's division of the total.
struct BudgetShare {
  std::string method;
  Budgets budgets;           ///< [layers, n_kv]
  std::vector<double> loss;  ///< [layers, n_kv]
  Index total = 0;           ///< sum of budgets: under published semantics not always what was asked for
  double total_loss = 0;
};
/// `which` is a number of plan.cases. `optimal` is exact and may take longer than the others; it cannot be
/// cancelled midway.
BudgetShare budget_share(const BudgetPlan& plan, std::size_t which, const BudgetCurves& curves,
                         JobControl& job);

inline std::size_t bytes_of(const HeadWorth& answer) {
  return bytes_with(answer, answer.order, answer.worth, answer.scores);
}
std::size_t bytes_of(const BudgetCurves& curves);
inline std::size_t bytes_of(const BudgetShare& answer) {
  return bytes_with(answer, answer.budgets, answer.loss);
}

// Results of `kvreplay budget` in a result folder. Heads count all layers of the dump; those of layers that
// the run left out have no budget and a loss of NaN.

/// budgets.csv.
struct BudgetResults {
  /// One total shared between all heads under one order.
  struct Division {
    std::string order, sigma;  ///< as the table has them
    std::vector<BudgetShare> methods;
  };
  std::vector<Division> divisions;  ///< in the table's order
  bool normalised = false;          ///< losses are shares of their layer's

  /// Null where there is none.
  const Division* find(const std::string& order, const std::string& sigma) const;
  std::vector<std::string> orders() const;
  /// Totals that were shared under an order.
  std::vector<std::string> sigmas(const std::string& order) const;
};
inline std::size_t bytes_of(const BudgetResults::Division& one) { return bytes_with(one, one.methods); }
inline std::size_t bytes_of(const BudgetResults& results) { return bytes_with(results, results.divisions); }

/// Reason why there are no results to read, as one clause; nothing if there are.
std::optional<std::string> why_no_budget_results(const ResultReader& results);
/// Throws InputError, one line, where the table is not what it should be.
BudgetResults read_budgets(const ResultReader& results);

/// curves/<order>.npy: L(0..l) of every head, empty for layers that the run left out. Throws InputError where
/// the file is missing or of another shape.
struct BudgetResultCurves {
  std::vector<std::vector<double>> loss;  ///< [layers x n_kv]
  /// The share that `lu` keeps of a head's tokens at sigma 0.01 .. 0.99, of curves/<order>~lu.npy: [layers x
  /// n_kv], empty where unknown.
  std::vector<std::vector<double>> kept;
};
inline std::size_t bytes_of(const BudgetResultCurves& answer) {
  return bytes_with(answer, answer.loss, answer.kept);
}
BudgetResultCurves read_budget_curves(const ResultReader& results, const std::string& order);

/// Data of the budgets panel for the selected run, as far as known: computed from its dump, or read from its
/// result folder. Heads are numbered row-major over [layers, n_kv]. Drawing thread only.
class BudgetFigures {
 public:
  /// For a run with its dump: asks for what is missing and takes what is there. Where the settings cannot be
  /// followed error() says why, and what was known stays.
  void look(PanelContext& context, const BudgetSettings& settings);
  /// For a run without: `order` and `sigma` are brought to some that the folder has.
  void look_at_results(PanelContext& context, std::string& order, std::string& sigma);

  /// Null unless the folder's tables are looked at and there.
  const BudgetResults* results() const { return results_.get(); }
  bool is_of(const Run& run) const;
  Index heads() const { return std::ssize(losses_); }
  std::vector<std::string> methods() const;
  /// Null where the method is unknown or its budgets are.
  const BudgetShare* find(const std::string& method) const;
  /// L(0..l) of a head, in the importance's unit or, normalised, as a share of its layer's; empty while it is
  /// unknown.
  const std::vector<double>& loss(Index head);
  /// The share that `lu` keeps of a head's tokens at sigma 0.01 .. 0.99; empty while it is unknown.
  std::vector<double> kept(Index head) const;

  const std::string& error() const { return error_; }
  const std::vector<std::string>& notes() const { return notes_; }
  /// Heads that are still to come.
  Index missing() const { return missing_; }
  bool pending() const { return pending_; }
  /// True if budgets of an older order or total are shown meanwhile.
  bool stale() const;
  /// Version number of the losses: changes whenever loss() of any head changes.
  std::uint64_t version() const { return version_; }

 private:
  struct Method {
    std::string name;
    Answer<BudgetShare> share;
  };
  void begin_with(const Run& run);
  void take_plan(BudgetPlan plan);
  void ask_heads(PanelContext& context, Index selected);
  void ask_shares(PanelContext& context);

  Key run_key_;
  std::vector<Method> methods_;
  std::vector<std::vector<double>> losses_;  // [layers, n_kv], as far as they were looked at
  // from the dump
  Key order_key_, curves_key_;
  BudgetSettings settings_;
  std::shared_ptr<const BudgetPlan> plan_;
  std::vector<std::shared_ptr<const HeadWorth>> worths_;  // [layers, n_kv]
  std::shared_ptr<const BudgetCurves> curves_;
  // from the result folder
  std::shared_ptr<const BudgetResults> results_;
  std::shared_ptr<const BudgetResultCurves> result_curves_;

  std::string error_;
  std::vector<std::string> notes_;
  Index missing_ = 0;
  bool pending_ = false;
  std::uint64_t version_ = 0;
};

}  // namespace kvreplay::viewer
