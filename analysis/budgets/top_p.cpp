#include "analysis/budgets/allocation.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace kvreplay {
namespace {

/// The share of a head's scores that the tokens before each place hold, [l].
std::vector<double> shares_before(std::span<const double> scores) {
  const double least = scores.back();
  double sum = 0;
  std::vector<double> before;
  for (const double score : scores) {
    before.push_back(sum);
    if (std::isfinite(score)) sum += score - least;  // what is pinned leads in any case
  }
  const auto l = static_cast<double>(scores.size());
  for (std::size_t place = 0; place < before.size(); ++place)
    before[place] = sum > 0 ? before[place] / sum : static_cast<double>(place) / l;
  return before;
}

}  // namespace

Budgets top_p(const BudgetFrame& frame, std::span<const double> scores) {
  std::vector<std::tuple<double, Index, Index>> tokens;  // share before it, head, place
  for (Index head = 0; head < frame.all_heads(); ++head) {
    const auto before = shares_before(scores.subspan(head * frame.l, frame.l));
    for (Index place = frame.lower; place < frame.l; ++place) tokens.emplace_back(before[place], head, place);
  }
  std::sort(tokens.begin(), tokens.end());
  Budgets budgets(frame.all_heads(), frame.lower);
  const Index left = frame.total - frame.lower * frame.all_heads();
  for (Index t = 0; t < left; ++t) ++budgets[std::get<1>(tokens[t])];
  return budgets;
}

namespace detail {
Budgets share_top_p(const AllocationInput& input) { return top_p(input.frame, input.scores); }
}  // namespace detail

}  // namespace kvreplay
