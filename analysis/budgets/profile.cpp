#include "analysis/budgets/profile.hpp"

#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <memory>
#include <numeric>

namespace kvreplay {
namespace {

constexpr Index kRatios = BudgetProfile::kRatios;

}  // namespace

BudgetProfile make_profile(const BudgetFrame& frame,
                           const std::function<Budgets(const BudgetFrame&)>& allocate) {
  BudgetProfile profile{frame.layers, frame.heads, {}};
  profile.pruned.reserve(kRatios * frame.all_heads());
  for (Index row = 0; row < kRatios; ++row) {
    const double sigma = BudgetProfile::sigma(row);
    const Budgets budgets = allocate(budget_frame(frame.layers, frame.heads, frame.l, sigma, frame.lower));
    assert(std::ssize(budgets) == frame.all_heads());
    for (const Index b : budgets)
      profile.pruned.push_back(frame.l > 0 ? static_cast<double>(frame.l - b) / static_cast<double>(frame.l)
                                           : 0);
  }
  return profile;
}

BudgetProfile lu_profile(const BudgetFrame& frame, const LossCurves& curves) {
  assert(curves.all_heads() == frame.all_heads() && curves.l() == frame.l);
  const HullGreedy greedy(curves, frame.lower);
  return make_profile(frame, [&](const BudgetFrame& at) {
    // A total that cannot hold the lower bound gives all heads what it can: their curves begin lower there.
    if (at.lower < greedy.lower()) return HullGreedy(curves, at.lower).budgets(at.total);
    return greedy.budgets(at.total);
  });
}

BudgetProfile mean_profile(std::span<const BudgetProfile> profiles) {
  assert(!profiles.empty());
  BudgetProfile mean = profiles.front();
  for (const BudgetProfile& profile : profiles.subspan(1)) {
    assert(profile.layers == mean.layers && profile.heads == mean.heads);
    for (std::size_t i = 0; i < mean.pruned.size(); ++i) mean.pruned[i] += profile.pruned[i];
  }
  for (double& ratio : mean.pruned) ratio /= static_cast<double>(profiles.size());
  return mean;
}

Budgets profile_budgets(const BudgetProfile& profile, const BudgetFrame& frame) {
  assert(profile.layers == frame.layers && profile.heads == frame.heads);
  const double at = frame.sigma * 100 - 1;
  // Which two rows: row -1 prunes nothing, row 99 everything. 0.29 * 100 is not 29 in a double.
  const double nearest = std::round(at), place = std::abs(at - nearest) < 1e-9 ? nearest : at;
  const auto below = static_cast<Index>(std::floor(place));
  const double weight = place - static_cast<double>(below);
  const auto ratio = [&](Index row, Index head) {
    if (row < 0) return 0.0;
    return row >= kRatios ? 1.0 : profile.pruned[row * frame.all_heads() + head];
  };
  std::vector<double> shares;
  for (Index head = 0; head < frame.all_heads(); ++head) {
    const double low = ratio(below, head);
    const double pruned = weight > 0 ? low + weight * (ratio(below + 1, head) - low) : low;
    shares.push_back(std::max(0.0, 1 - pruned) * static_cast<double>(frame.l));
  }
  return round_shares(shares, frame.total, frame.lower, frame.l);
}

Budgets kvpress_profile_budgets(const BudgetProfile& profile, double sigma, Index l) {
  const Index all_heads = profile.layers * profile.heads;
  if (sigma <= 0) return Budgets(static_cast<std::size_t>(all_heads), l);
  const auto row = std::clamp<Index>(static_cast<Index>(std::nearbyint(sigma * 100)) - 1, 0, kRatios - 1);
  Budgets budgets;
  for (Index layer = 0; layer < profile.layers; ++layer) {
    const double* pruned = profile.pruned.data() + row * all_heads + layer * profile.heads;
    std::vector<float> ideal;
    for (Index h = 0; h < profile.heads; ++h)
      ideal.push_back(std::clamp(1.0f - static_cast<float>(pruned[h]), 0.0f, 1.0f) * static_cast<float>(l));
    const float sum = std::accumulate(ideal.begin(), ideal.end(), 0.0f);
    const Index target = std::clamp(static_cast<Index>(std::nearbyint(sum)), profile.heads,
                                    profile.heads * std::max<Index>(l, 1));

    Budgets base;
    for (const float x : ideal) base.push_back(static_cast<Index>(std::floor(x)));
    const Index rest = target - std::accumulate(base.begin(), base.end(), Index{0});
    std::vector<std::size_t> by_fraction(ideal.size());
    std::iota(by_fraction.begin(), by_fraction.end(), std::size_t{0});
    std::stable_sort(by_fraction.begin(), by_fraction.end(), [&](std::size_t a, std::size_t b) {
      return ideal[a] - std::floor(ideal[a]) > ideal[b] - std::floor(ideal[b]);
    });
    for (std::size_t k = 0; k < by_fraction.size() && static_cast<Index>(k) < rest; ++k)
      ++base[by_fraction[k]];
    for (const Index b : base) budgets.push_back(std::min(std::max<Index>(b, 1), l));
  }
  return budgets;
}

BudgetProfile load_profile(const std::filesystem::path& path, Index layers, Index heads) {
  const NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path));
  const std::vector<std::ptrdiff_t> shape = {kRatios, layers, heads};
  const auto& dtype = array.header.dtype;
  if (!dtype || (*dtype != Dtype::f32 && *dtype != Dtype::f64))
    throw InputError(array.where, "prune ratios in float32 or float64",
                     dtype ? std::string(name_of(*dtype)) : array.header.descr);
  if (array.header.shape != shape)
    throw InputError(
        array.where,
        fmt::format("prune ratios of shape {} (sigma 0.01 .. 0.99, layers, KV heads)", shape_text(shape)),
        shape_text(array.header.shape));

  BudgetProfile profile{layers, heads, std::vector<double>(static_cast<std::size_t>(array.header.count))};
  // Rows are sigmas; in Fortran order the first index runs fastest, and the last two swap theirs.
  const Index all_heads = layers * heads;
  for (Index row = 0; row < kRatios; ++row) {
    const MatrixView view = array.header.fortran_order
                                ? MatrixView{row, layers, heads, kRatios, kRatios * layers}
                                : MatrixView{row * all_heads, layers, heads, heads, 1};
    read_matrix(array, *dtype, view, profile.pruned.data() + row * all_heads);
  }
  for (std::size_t i = 0; i < profile.pruned.size(); ++i) {
    const double ratio = profile.pruned[i];
    if (ratio >= 0 && ratio <= 1) continue;
    const auto at = static_cast<Index>(i);
    throw InputError(
        array.where, "finite prune ratios between 0 and 1",
        fmt::format("{} at [{}, {}, {}]", ratio, at / all_heads, at / heads % layers, at % heads));
  }
  return profile;
}

void save_profile(AtomicFile file, const BudgetProfile& profile) {
  const std::vector<float> ratios(profile.pruned.begin(), profile.pruned.end());
  const std::vector<std::size_t> shape = {static_cast<std::size_t>(kRatios),
                                          static_cast<std::size_t>(profile.layers),
                                          static_cast<std::size_t>(profile.heads)};
  write_npy(std::move(file), shape, std::span<const float>(ratios));
}

}  // namespace kvreplay
