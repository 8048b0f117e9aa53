#pragma once

#include "analysis/budgets/budget_frame.hpp"
#include "analysis/budgets/loss_curve.hpp"
#include "analysis/results/budget_methods.hpp"
#include "data/atomic_file.hpp"
#include "sim/eviction/policy_facts.hpp"

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Division of a budget between heads. Definitions: analysis/budgets/BUDGETS.md.

namespace kvreplay {

/// A method's division of budgets at every compression ratio: prune ratios 1 - b / l for sigma = 0.01, 0.02
/// .. 0.99, the form in which kvpress's LUKVPress reads them (`budget_curves.npy`).
struct BudgetProfile {
  static constexpr Index kRatios = 99;
  Index layers = 0, heads = 0;
  std::vector<double> pruned;  ///< [99, layers, heads], between 0 and 1

  /// sigma of row i, (i + 1) / 100.
  static double sigma(Index row) { return static_cast<double>(row + 1) / 100; }
};

/// Profile of one prompt: calls `allocate` once for every sigma. `frame` gives layers, heads, l and lower;
/// its total is replaced for every sigma.
BudgetProfile make_profile(const BudgetFrame& frame,
                           const std::function<Budgets(const BudgetFrame&)>& allocate);

/// LU-KV's profile: one sorted list of hull blocks for all sigmas. Every head keeps `frame.lower` tokens, or
/// fewer if a total is too small. `greedy`: of these curves, from frame.lower on.
BudgetProfile lu_profile(const BudgetFrame& frame, const LossCurves& curves, const HullGreedy& greedy);

/// The mean over calibration prompts; all of one shape, at least one.
BudgetProfile mean_profile(std::span<const BudgetProfile> profiles);

/// Budgets at the frame's sigma: ratios linear between rows (0 at sigma 0, 1 at sigma 1), (1 - ratio) l as
/// shares, made to fit the frame by round_shares.
Budgets profile_budgets(const BudgetProfile& profile, const BudgetFrame& frame);

/// Budgets as LUKVPress of kvpress 0.5.4 takes them from its file, layer by layer: the row nearest to sigma
/// (half to even; sigma 0 keeps all), float32 keep rates times l rounded down, remainders to the largest
/// fractions up to the layer's own rounded sum, at least 1 a head. Their sum is what the profile makes it.
/// (Equal fractions, which that code leaves to its sorting, go to lower heads.)
Budgets kvpress_profile_budgets(const BudgetProfile& profile, double sigma, Index l);

/// A float32 or float64 `.npy` [99, layers, heads] of finite ratios between 0 and 1. Throws InputError.
BudgetProfile load_profile(const std::filesystem::path& path, Index layers, Index heads);

/// As float32, which is what kvpress computes in.
void save_profile(AtomicFile file, const BudgetProfile& profile);

// Shares that need no loss curve. Under Semantics::paper they fit their frame: integers between lower and l
// that sum to total. Under `official` and kvpress' they are what that code allocates at the frame's sigma
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
///             0.5.5: round(T) is at least 1, and one layer is as the first of several.
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
///             0.5.5: n is at least 1, and so is the head's own where alpha is not 0.
/// O(layers heads l) memory is read, O(total log heads) time.
Budgets ada(const BudgetFrame& frame, std::span<const double> scores, const AdaOptions& options = {});

/// DuoAttention [DUO] with heads chosen by loss in place of learnt gates: every head keeps `lower` tokens
/// (its pins: a streaming head), and what is left of the total makes heads whole, those with the largest
/// L_h(lower) first, equal ones from lower heads. The last of them takes what remains.
Budgets duo(const BudgetFrame& frame, const LossCurves& curves);

/// A method with options that replace its defaults: ada[alpha=0.5], pyramid[beta=10].
struct BudgetDivision {
  BudgetMethod method;
  std::string name;
  std::optional<double> alpha = {};  ///< of ada
  std::optional<double> beta = {};   ///< of pyramid
  BudgetDivision(BudgetMethod of);   // NOLINT: it is one
  bool operator==(const BudgetDivision&) const = default;
};

/// Inputs of uniform, pyramid and ada.
struct RankDivision {
  const BudgetFrame& frame;
  Semantics semantics = Semantics::paper;
  Index pinned = 0;                     ///< tokens that lead every order
  Index window = 64;                    ///< of SnapKV, on which kvpress' pyramid rests
  std::span<const double> scores = {};  ///< [layers, heads, l], as ada() has them; of ada alone
};
/// Budgets of all heads by one of these methods, with the method's defaults for options that the division
/// leaves open.
Budgets divided_by_rank(const BudgetDivision& division, const RankDivision& input);

/// Inputs of all methods. Each method reads the frame, and the fields that its facts name as needed.
struct AllocationInput {
  const BudgetFrame& frame;
  Semantics semantics = Semantics::paper;
  Index pinned = 0;  ///< tokens that lead every order
  const LossCurves& curves;
  const HullGreedy& greedy;                ///< of these curves, from the frame's lower or above
  std::span<const double> scores = {};     ///< [layers, heads, l] in the order's own order, as ada() has them
  const BudgetProfile* profile = nullptr;  ///< of --profile
};

/// Budgets of all heads, and their losses by the curves.
struct Allocation {
  Budgets budgets;           ///< [layers, heads]
  std::vector<double> loss;  ///< [layers, heads]
};
Allocation allocate(const BudgetDivision& division, const AllocationInput& input);

}  // namespace kvreplay
