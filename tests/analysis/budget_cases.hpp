#pragma once

#include "analysis/budgets/loss_curve.hpp"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace kvreplay::test {

/// Gains along the order as they come; without std:: distributions, which differ by library.
class Draw {
 public:
  explicit Draw(unsigned seed) : bits_(seed) {}
  double unit() { return static_cast<double>(bits_()) / 4294967296.0; }
  Index below(Index n) { return static_cast<Index>(bits_() % static_cast<std::uint32_t>(n)); }

 private:
  std::mt19937 bits_;
};

inline const std::vector<std::string>& gain_kinds() {
  static const std::vector<std::string> kinds = {"heavy",     "falling", "rising", "few values", "mostly 0",
                                                 "all equal", "late",    "tiny",   "period"};
  return kinds;
}

/// One head's gains in order, [l]: convex ("falling"), as far from convex as can be ("rising", "late"), with
/// plateaus, with equal gains, over many orders of magnitude.
inline std::vector<double> random_gains(const std::string& kind, Index l, Draw& draw) {
  std::vector<double> gains(l);
  for (std::size_t j = 0; j < gains.size(); ++j) {
    const double u = draw.unit(), place = static_cast<double>(j + 1);
    if (kind == "heavy") gains[j] = std::pow(10.0, 6 * u - 3);
    if (kind == "falling") gains[j] = 1 / place;
    if (kind == "rising") gains[j] = place * place + u;
    if (kind == "few values") gains[j] = std::floor(4 * u);
    if (kind == "mostly 0") gains[j] = u < 0.75 ? 0 : u;
    if (kind == "all equal") gains[j] = 1.0 / 3;
    if (kind == "late") gains[j] = j + 1 == gains.size() ? 100 + u : 0.01 * u;
    if (kind == "tiny") gains[j] = std::pow(10.0, -300 + 20 * u);
    if (kind == "period") gains[j] = j % 4 == 3 ? 1 : 0.01;
  }
  return gains;
}

/// Curves whose order is the positions' own.
inline LossCurves curves_of(const std::vector<std::vector<double>>& gains) {
  const auto l = std::ssize(gains.front());
  LossCurves curves(std::ssize(gains), l);
  std::vector<std::int32_t> order(l);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t h = 0; h < gains.size(); ++h) curves.set(static_cast<Index>(h), order, gains[h]);
  return curves;
}

inline LossCurves random_curves(const std::string& kind, Index heads, Index l, Draw& draw) {
  std::vector<std::vector<double>> gains;
  for (Index h = 0; h < heads; ++h) gains.push_back(random_gains(kind, l, draw));
  return curves_of(gains);
}

inline BudgetFrame frame_of(Index layers, Index heads, Index l, Index total, Index lower = 0) {
  return {layers, heads, l,
          total,  lower, 1 - static_cast<double>(total) / static_cast<double>(layers * heads * l)};
}

}  // namespace kvreplay::test
