#pragma once

#include "analysis/budgets/budget_frame.hpp"
#include "analysis/budgets/hull.hpp"
#include "analysis/budgets/profile.hpp"
#include "data/facts_table.hpp"
#include "sim/eviction/policy_facts.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// How a budget is shared between heads. Definitions: analysis/budgets/BUDGETS.md.

namespace kvreplay {

// Shares that need no loss curve. Under Semantics::paper they fit their frame: integers between lower and l
// that sum to total. Under `official` and `kvpress` they are what that code allocates at the frame's sigma
// (cut to 0..l); its sum is its own, and `lower` and `total` are not read.

/// The mean budget for every head; the remainder goes to lower heads first.
Budgets uniform(const BudgetFrame& frame);

struct PyramidOptions {
  Semantics semantics = Semantics::paper;
  double beta = 20;
  Index window = 8;  ///< tokens of the observation window; not read by `paper`
};

/// PyramidKV [PYR]: heads of one layer share alike, the first layer most.
///   paper     T = total / all heads, min = T / beta, max = 2T - min, layer i of L gets
///             max - i (max - min) / (L - 1). Where max > l, max = l and min = 2T - l; where min < lower,
///             min = lower and max = 2T - lower: linear still, and with the same sum. One layer gets T.
///   official  B = round((1 - sigma) l) a head with the window in it; T = B - window, everything in integer
///             division (min, and the step over L - 1), max cut to l - window, window added back to every
///             layer. Nothing is evicted where l < B; every layer keeps B where l < 2T.
///   kvpress   T = (1 - sigma) l real-valued, max cut to l - window, every layer's budget rounded half to
///             even; round(T) in every layer where min < window, or with one layer. The window is inside.
Budgets pyramid(const BudgetFrame& frame, const PyramidOptions& options = {});

struct AdaOptions {
  Semantics semantics = Semantics::paper;
  double alpha = 0.2;  ///< the share of a head's uniform budget that is its own
  Index window = 32;   ///< pinned tokens that lead every head's order; read by `official` only
};

/// AdaKV [ADA]: a layer's tokens go to the best scores of all its heads.
/// `scores`: [layers, heads, l], every head's in the order's own order, so never rising; pinned tokens
/// +infinity; no NaN. Equal scores: lower head, then lower place.
///   paper     every layer has the sum of its heads' uniform budgets u; each head takes its own first
///             max(lower, floor(alpha u)), the best of what remains fill the layer.
///   official  T = round((1 - sigma) l) - window; c = a head's count among the layer's T heads best scores
///             behind the window; it keeps round(c (1 - alpha) + int(T alpha)), half to even, and the window.
///             (Without that code's optional normalisation of scores.)
///   kvpress   n = int((1 - sigma) l); each head its first int(alpha n), the layer n heads in all.
/// O(layers heads l) memory is read, O(total log heads) time.
Budgets ada(const BudgetFrame& frame, std::span<const double> scores, const AdaOptions& options = {});

enum class BudgetMethod { uniform, pyramid, ada, lu, lu_without_gap, optimal, profile };

/// A method, and what replaces its own choices: ada[alpha=0.5], pyramid[beta=10].
struct BudgetDivision {
  BudgetMethod method;
  std::string name;
  std::optional<double> alpha = {};  ///< of ada
  std::optional<double> beta = {};   ///< of pyramid
  BudgetDivision(BudgetMethod of);   // NOLINT: it is one
  bool operator==(const BudgetDivision&) const = default;
};

/// What there is to share a budget by. A method reads what its facts say that it needs, and the frame.
struct AllocationInput {
  const BudgetFrame& frame;
  Semantics semantics = Semantics::paper;
  Index pinned = 0;  ///< tokens that lead every order
  const LossCurves& curves;
  const HullGreedy& greedy;                ///< of these curves, from the frame's lower or above
  std::span<const double> scores = {};     ///< [layers, heads, l] in the order's own order, as ada() has them
  const BudgetProfile* profile = nullptr;  ///< of --profile
};

struct BudgetMethodFacts {
  BudgetMethod id;
  std::string_view name;
  std::string_view meaning;     ///< one line
  std::string_view shown = {};  ///< as people read it, where the name does not say it
  bool needs_scores = false;    ///< of all heads
  bool is_oracle = false;       ///< divides by the curves, which look at the steps that it is judged on
  bool needs_profile = false;   ///< is there with a profile, and not asked for by name
  bool is_slow = false;         ///< may take seconds
  bool is_usual = true;         ///< runs where no method is asked for
};

inline constexpr auto kBudgetMethods = facts_table<BudgetMethodFacts>({
    {.id = BudgetMethod::uniform, .name = "uniform", .meaning = "Every head keeps the same"},
    {.id = BudgetMethod::pyramid,
     .name = "pyramid",
     .meaning = "PyramidKV: falls linearly over layers, beta = 20"},
    {.id = BudgetMethod::ada,
     .name = "ada",
     .meaning = "AdaKV: the best scores over a layer's heads, after each head's own top 20 %",
     .needs_scores = true},
    {.id = BudgetMethod::lu,
     .name = "lu",
     .meaning = "LU-KV: the largest gains of every curve's lower convex hull, greedily",
     .is_oracle = true},
    {.id = BudgetMethod::lu_without_gap,
     .name = "lu_without_gap",
     .meaning = "LU-KV's ablation: lu as if every head's order were that of the importance itself",
     .is_oracle = true,
     .is_usual = false},
    {.id = BudgetMethod::optimal,
     .name = "optimal",
     .meaning = "The least total loss that integer budgets can have (multiple-choice knapsack)",
     .is_oracle = true,
     .is_slow = true},
    {.id = BudgetMethod::profile,
     .name = "profile",
     .meaning = "Shares measured on other dumps, averaged",
     .shown = "profile of other prompts",
     .needs_profile = true},
});
constexpr std::string_view name_of(BudgetMethod method) { return kBudgetMethods[method].name; }
/// As people read it, "lu (oracle)"; tables and options have the name.
std::string shown_name(BudgetMethod method);
/// The same of a division's name, which stays as it is where no method has it.
std::string shown_name(std::string_view method);
/// "lu, lu_without_gap and optimal are oracles: ...", what the reader of a list of methods has to know;
/// without a full stop.
std::string oracles_of_budgets();

/// Budgets of all heads, and what they lose by the curves.
struct Allocation {
  Budgets budgets;           ///< [layers, heads]
  std::vector<double> loss;  ///< [layers, heads]
};
Allocation allocate(const BudgetDivision& division, const AllocationInput& input);

}  // namespace kvreplay
