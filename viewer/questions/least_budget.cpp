#include "viewer/questions/least_budget.hpp"

#include "viewer/questions/score_curves.hpp"

#include <vector>

namespace kvreplay::viewer {

LeastBudget least_budget(Index l, std::size_t looks, const std::function<bool(Index)>& kept) {
  if (l <= 0 || !kept(l)) return {};
  const std::vector<Index> budgets = log_spaced(l, looks);
  Index keeps = l;
  for (auto k = budgets.rbegin(); k != budgets.rend(); ++k) {
    if (*k == l) continue;
    if (kept(*k)) {
      keeps = *k;
      continue;
    }
    Index evicts = *k;
    while (keeps - evicts > 1) {
      const Index middle = evicts + (keeps - evicts) / 2;
      (kept(middle) ? keeps : evicts) = middle;
    }
    break;
  }
  return {keeps};
}

}  // namespace kvreplay::viewer
