#include "analysis/budgets/budget_frame.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
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
         std::all_of(budgets.begin(), budgets.end(),
                     [&](Index b) { return b >= frame.lower && b <= frame.l; }) &&
         std::accumulate(budgets.begin(), budgets.end(), Index{0}) == frame.total;
}

}  // namespace kvreplay
