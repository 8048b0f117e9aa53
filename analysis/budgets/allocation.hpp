#pragma once

#include "analysis/budgets/budget_frame.hpp"
#include "analysis/budgets/hull.hpp"
#include "analysis/budgets/profile.hpp"
#include "analysis/results/budget_methods.hpp"
#include "sim/eviction/policy_facts.hpp"

#include <optional>
#include <span>
#include <string>
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

/// Budgets of all heads, and what they lose by the curves.
struct Allocation {
  Budgets budgets;           ///< [layers, heads]
  std::vector<double> loss;  ///< [layers, heads]
};
Allocation allocate(const BudgetDivision& division, const AllocationInput& input);

}  // namespace kvreplay
