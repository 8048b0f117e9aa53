#include "analysis/budgets/budget_frame.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace kvreplay {

double BudgetFrame::mean() const { return static_cast<double>(total) / static_cast<double>(all_heads()); }

Index total_budget(double sigma, Index l, Index all_heads) {
  assert(sigma >= 0 && sigma <= 1);
  const double tokens = static_cast<double>(l) * static_cast<double>(all_heads);
  const auto total = static_cast<Index>(std::floor((1 - sigma) * tokens + 0.5 + tokens * 0x1p-52));
  return std::clamp<Index>(total, 0, l * all_heads);
}

BudgetFrame budget_frame(Index layers, Index heads, Index l, double sigma, Index lower) {
  assert(layers > 0 && heads > 0 && l >= 0 && lower >= 0);
  BudgetFrame frame{layers, heads, l, total_budget(sigma, l, layers * heads), 0, sigma};
  frame.lower = std::min(lower, frame.total / frame.all_heads());
  return frame;
}

bool fits(const BudgetFrame& frame, const Budgets& budgets) {
  return std::ssize(budgets) == frame.all_heads() &&
         std::ranges::all_of(budgets, [&](Index b) { return b >= frame.lower && b <= frame.l; }) &&
         std::accumulate(budgets.begin(), budgets.end(), Index{0}) == frame.total;
}

namespace {

constexpr int kFractionBits = 24;
constexpr std::int64_t kToken = std::int64_t{1} << kFractionBits;

/// The shares times the factor f for which clamp(f share, lower, upper) sum to the total, clamped. The sum
/// grows with f, and it is linear between two adjacent values of f at which some share meets a bound.
std::vector<double> scaled(std::span<const double> shares, double total, double lower, double upper) {
  const auto cut = [&](double share, double f) {
    return std::clamp(share > 0 ? f * share : 0.0, lower, upper);
  };
  const auto sum_at = [&](double f) {
    double sum = 0;
    for (const double share : shares) sum += cut(share, f);
    return sum;
  };
  std::vector<double> knots = {0};
  double zeros = 0;
  for (const double share : shares) {
    if (share > 0) {
      knots.push_back(lower / share);
      knots.push_back(upper / share);
    } else {
      ++zeros;
    }
  }
  std::ranges::sort(knots);
  const auto above =
      std::partition_point(knots.begin(), knots.end(), [&](double f) { return sum_at(f) < total; });

  std::vector<double> result(shares.size());
  if (above == knots.end()) {
    const double each = (total - upper * (static_cast<double>(shares.size()) - zeros)) / std::max(zeros, 1.0);
    for (std::size_t i = 0; i < shares.size(); ++i) result[i] = shares[i] > 0 ? upper : each;
    return result;
  }
  // Between this knot and the one before, these shares are strictly inside the bounds.
  const double high = *above, low = above == knots.begin() ? 0 : *(above - 1),
               middle = low + (high - low) / 2;
  double inside = 0, fixed = 0;
  for (const double share : shares) {
    const double value = cut(share, middle);
    if (value > lower && value < upper)
      inside += share;
    else
      fixed += value;
  }
  const double f = inside > 0 ? (total - fixed) / inside : high;
  for (std::size_t i = 0; i < shares.size(); ++i) result[i] = cut(shares[i], f);
  return result;
}

}  // namespace

Budgets round_shares(std::span<const double> shares, Index total, Index lower, Index upper) {
  [[maybe_unused]] const auto n = std::ssize(shares);
  assert(lower * n <= total && total <= upper * n);
  const double low = static_cast<double>(lower), high = static_cast<double>(upper);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<double> exact(shares.begin(), shares.end());
  // Left alone where they already fit: a factor of 1 + 1e-16 would only add noise.
  const bool sums = std::abs(sum - static_cast<double>(total)) <= 0x1p-24;
  const bool inside = std::ranges::all_of(exact, [&](double x) { return x >= low && x <= high; });
  if (!sums || !inside) exact = scaled(shares, static_cast<double>(total), low, high);

  Budgets result(exact.size());
  std::vector<std::int64_t> fraction(exact.size());
  Index rest = total;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto units = static_cast<std::int64_t>(std::floor(exact[i] * static_cast<double>(kToken) + 0.5));
    result[i] = static_cast<Index>(units >> kFractionBits);
    fraction[i] = units & (kToken - 1);
    rest -= result[i];
  }
  std::vector<std::size_t> by_fraction(exact.size());
  std::iota(by_fraction.begin(), by_fraction.end(), std::size_t{0});
  std::ranges::stable_sort(by_fraction,
                           [&](std::size_t a, std::size_t b) { return fraction[a] > fraction[b]; });
  // One round does, but for rounding in the sums of shares; the bounds and the total hold in any case.
  while (rest != 0) {
    const Index step = rest > 0 ? 1 : -1;
    for (std::size_t k = 0; k < by_fraction.size() && rest != 0; ++k) {
      Index& value = result[by_fraction[step > 0 ? k : by_fraction.size() - 1 - k]];
      if (value + step < lower || value + step > upper) continue;
      value += step;
      rest -= step;
    }
  }
  return result;
}

}  // namespace kvreplay
