#include "sim/channels/optimal_subset.hpp"

#include "sim/channels/subset_search.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

namespace {

/// n channels, none of them fixed.
bool is_choice(const ChannelSet& set, Index n, const ChannelSet& fixed, Index d) {
  if (std::ssize(set) != d) return false;
  Index members = 0;
  for (std::size_t c = 0; c < set.size(); ++c) {
    if (set[c] == 0) continue;
    if (!fixed.empty() && fixed[c] != 0) return false;
    ++members;
  }
  return members == n;
}

/// The bound that was proven, after `best` has become the best set found.
double search(const Matrix<double>& H, Index n, const ChannelSet& fixed, const ChannelSet& start,
              Index most_nodes, Incumbent& best, Index& nodes) {
  const SubsetProblem problem = whole_problem(H, n, fixed);
  if (best.limit() <= 0 || problem.closed()) return best.limit();
  if (few_subsets(problem.m(), n)) {
    best.offer(best_of_all(problem, H.rows()));
    return best.limit();
  }
  best.offer_exchanged(best.set());
  if (is_choice(start, n, fixed, H.rows())) best.offer_exchanged(start);
  const double by_rows = row_bound(problem);
  if (by_rows >= best.limit()) return best.limit();
  const ConvexProblem root = convexified(problem, best);
  const SearchEnd end = search_tree(root, most_nodes, best);
  nodes = end.nodes;
  return std::max(by_rows, end.bound);
}

}  // namespace

OptimalSubset optimal_subset(const Matrix<double>& H, Index n, const ChannelSet& fixed,
                             const ChannelSet& start, Index most_nodes) {
  const std::vector<Index> order = greedy_order(H, fixed);
  n = std::clamp<Index>(n, 0, std::ssize(order));
  OptimalSubset optimal;
  optimal.set = first_of(order, n, H.rows());

  // By a power of 2, so that no unit of H matters to the search.
  const double largest = H.size() == 0 ? 0 : H.cwiseAbs().maxCoeff();
  int exponent = 0;
  if (std::isfinite(largest)) std::frexp(largest, &exponent);
  const Matrix<double> scaled = H * std::ldexp(1.0, -exponent);
  Incumbent best(scaled, fixed, optimal.set);
  const double bound = search(scaled, n, fixed, start, most_nodes, best, optimal.nodes);

  optimal.set = best.set();
  optimal.error = subset_error(H, optimal.set);
  optimal.proven = bound >= best.limit();
  optimal.lower_bound =
      optimal.proven ? optimal.error : std::min(optimal.error, std::max(0.0, std::ldexp(bound, exponent)));
  return optimal;
}

}  // namespace kvreplay
