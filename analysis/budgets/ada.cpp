#include "analysis/budgets/allocation.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <queue>
#include <utility>

namespace kvreplay {
namespace {

/// One layer's scores: [heads, l], every row falling.
struct OrderedScores {
  const double* first;
  Index heads, l;
  double at(Index head, Index place) const { return first[head * l + place]; }
};

/// Adds `tokens` to the budgets of a layer: the best scores at and behind every head's present budget.
void merge_best(const OrderedScores& scores, Index tokens, Index* budgets) {
  using Next = std::pair<double, Index>;  // score, head
  const auto worse = [](const Next& a, const Next& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<Next, std::vector<Next>, decltype(worse)> heap(worse);
  for (Index h = 0; h < scores.heads; ++h)
    if (budgets[h] < scores.l) heap.push({scores.at(h, budgets[h]), h});
  for (; tokens > 0 && !heap.empty(); --tokens) {
    const Index h = heap.top().second;
    heap.pop();
    if (++budgets[h] < scores.l) heap.push({scores.at(h, budgets[h]), h});
  }
}

/// floor(alpha u), where 0.1 of 30 is 3 whatever a double makes of 0.1.
Index own_share(double alpha, Index u) {
  return static_cast<Index>(std::floor(alpha * static_cast<double>(u) + 1e-9));
}

}  // namespace

Budgets ada(const BudgetFrame& frame, std::span<const double> scores, const AdaOptions& options) {
  assert(std::ssize(scores) == frame.all_heads() * frame.l);
  assert(options.alpha >= 0 && options.alpha <= 1);
  Budgets budgets(static_cast<std::size_t>(frame.all_heads()), 0);
  const Budgets even = options.semantics == Semantics::paper ? uniform(frame) : Budgets{};
  const double kept = static_cast<double>(frame.l) * (1 - frame.sigma);
  for (Index layer = 0; layer < frame.layers; ++layer) {
    const OrderedScores of_layer{scores.data() + layer * frame.heads * frame.l, frame.heads, frame.l};
    Index* budget = budgets.data() + layer * frame.heads;
    switch (options.semantics) {
      case Semantics::paper: {
        const Index* u = even.data() + layer * frame.heads;
        Index rest = 0;
        for (Index h = 0; h < frame.heads; ++h) {
          budget[h] = std::max(frame.lower, own_share(options.alpha, u[h]));
          rest += u[h] - budget[h];
        }
        merge_best(of_layer, rest, budget);
        break;
      }
      case Semantics::official: {
        const Index capacity = total_budget(frame.sigma, frame.l, 1);
        const Index window = std::min(options.window, capacity), mean = capacity - window;
        std::fill_n(budget, frame.heads, window);
        merge_best(of_layer, mean * frame.heads, budget);
        const auto floor_capacity = std::trunc(static_cast<double>(mean) * options.alpha);
        for (Index h = 0; h < frame.heads; ++h) {
          const double mixed = static_cast<double>(budget[h] - window) * (1 - options.alpha) + floor_capacity;
          budget[h] = std::min(static_cast<Index>(std::nearbyint(mixed)) + window, frame.l);
        }
        break;
      }
      case Semantics::kvpress: {
        const auto n = static_cast<Index>(kept);
        const auto safe = static_cast<Index>(static_cast<double>(n) * options.alpha);
        std::fill_n(budget, frame.heads, safe);
        merge_best(of_layer, (n - safe) * frame.heads, budget);
        break;
      }
    }
  }
  return budgets;
}

}  // namespace kvreplay
