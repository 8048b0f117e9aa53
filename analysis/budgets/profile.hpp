#pragma once

#include "analysis/budgets/hull.hpp"
#include "data/atomic_file.hpp"

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace kvreplay {

/// How a method divides budgets at every compression ratio: prune ratios 1 - b / l for sigma = 0.01, 0.02 ..
/// 0.99, the form in which kvpress's LUKVPress reads them (`budget_curves.npy`).
struct BudgetProfile {
  static constexpr Index kRatios = 99;
  Index layers = 0, heads = 0;
  std::vector<double> pruned;  ///< [99, layers, heads], between 0 and 1

  /// sigma of row i, (i + 1) / 100.
  static double sigma(Index row) { return static_cast<double>(row + 1) / 100; }
};

/// The profile of one prompt: `allocate` is asked once for every sigma. `frame` gives layers, heads, l and
/// lower; its total is made anew for every sigma.
BudgetProfile make_profile(const BudgetFrame& frame,
                           const std::function<Budgets(const BudgetFrame&)>& allocate);

/// LU-KV's profile: one sorted list of hull blocks for all sigmas. Every head keeps `frame.lower` tokens, or
/// fewer where a total does not reach so far.
BudgetProfile lu_profile(const BudgetFrame& frame, const LossCurves& curves);

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

}  // namespace kvreplay
