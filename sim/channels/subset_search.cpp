#include "sim/channels/subset_search.hpp"

#include "sim/channels/subset.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

namespace kvreplay {

namespace {

constexpr Index kNodesPerExchange = 8;

/// Tries all sets in the order of their sorted lists.
class Enumeration {
 public:
  explicit Enumeration(const SubsetProblem& problem)
      : problem_(problem), cost_(problem.k, problem.m()), members_(problem.k) {
    cost_.row(0) = problem.A.diagonal() + problem.linear;
    descend(0, 0, 0);
  }
  const std::vector<Index>& best() const { return best_; }

 private:
  /// Chooses member `depth` among the channels from `first` on; cost_ of that depth is what each adds.
  void descend(Index depth, Index first, double error) {
    const double* cost = cost_.row(depth).data();
    const Index left = problem_.k - depth, end = problem_.m() - left + 1;
    if (left == 1) {
      double least = std::numeric_limits<double>::infinity();
      for (Index c = first; c < end; ++c) least = std::min(least, cost[c]);
      if (!(error + least < least_)) return;
      least_ = error + least;
      members_[depth] = std::find(cost + first, cost + end, least) - cost;
      best_ = members_;
      return;
    }
    double* next = cost_.row(depth + 1).data();
    for (Index c = first; c < end; ++c) {
      const double* row = problem_.A.row(c).data();
      for (Index e = c + 1; e < problem_.m(); ++e) next[e] = cost[e] + 2 * row[e];
      members_[depth] = c;
      descend(depth + 1, c + 1, error + cost[c]);
    }
  }

  const SubsetProblem& problem_;
  Matrix<double> cost_;
  std::vector<Index> members_, best_;
  double least_ = std::numeric_limits<double>::infinity();
};

struct Node {
  double bound = 0;
  Index number = 0;
  Index branch = 0;  ///< the channel to settle next
  Choices choices;   ///< of the root's channels
  std::vector<float> x;
};

struct LaterThan {
  bool operator()(const Node& a, const Node& b) const {
    return a.bound != b.bound ? a.bound > b.bound : a.number > b.number;
  }
};

Vector<double> start_of(const Node& node) {
  std::vector<double> x;
  for (std::size_t c = 0; c < node.x.size(); ++c)
    if (node.choices[c] == Choice::kOpen) x.push_back(node.x[c]);
  return Eigen::Map<Vector<double>>(x.data(), std::ssize(x));
}

/// What the bound of its open channels settles is settled in the node. True where none is left open.
bool settle_open(const Tangent& tangent, double limit, Node& node, Index k) {
  Choices settled(tangent.x.size(), Choice::kOpen);
  settle(tangent, limit, settled);
  Index open = 0, in = 0, i = 0;
  double least_settled = -1;
  for (std::size_t c = 0; c < node.choices.size(); ++c) {
    if (node.choices[c] != Choice::kOpen) continue;
    node.choices[c] = settled[i];
    node.x[c] = static_cast<float>(tangent.x[i]);
    const double between = tangent.x[i] * (1 - tangent.x[i]);
    if (settled[i] == Choice::kOpen) ++open;
    if (settled[i] == Choice::kIn) ++in;
    if (settled[i] == Choice::kOpen && between > least_settled) {
      least_settled = between;
      node.branch = static_cast<Index>(c);
    }
    ++i;
  }
  return k - in <= 0 || k - in >= open;
}

}  // namespace

Incumbent::Incumbent(const Matrix<double>& H, ChannelSet fixed, const ChannelSet& first)
    : H_(H), fixed_(std::move(fixed)), set_(first) {
  error_ = std::numeric_limits<double>::infinity();
  offer(first);
}

void Incumbent::offer(const ChannelSet& set) {
  std::vector<Index> members;
  for (Index c = 0; c < H_.rows(); ++c)
    if (set[c] != 0) members.push_back(c);
  const auto sum_of = [&](auto&& entry) {
    double sum = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double* row = H_.row(members[i]).data();
      double above = 0;
      for (std::size_t j = 0; j < i; ++j) above += entry(row[members[j]]);
      sum += entry(row[members[i]]) + 2 * above;
    }
    return sum;
  };
  const double error = sum_of([](double x) { return x; });
  if (!(error < error_)) return;
  set_ = set;
  error_ = error;
  limit_ = error - 1e-11 * sum_of([](double x) { return std::abs(x); });
}

ChannelSet Incumbent::offer_rounded(const SubsetProblem& problem, const Vector<double>& x) {
  std::vector<Index> order(problem.m());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return x[a] > x[b]; });
  ChannelSet set(H_.rows(), 0);
  for (const Index c : problem.taken) set[c] = 1;
  for (Index i = 0; i < problem.k; ++i) set[problem.channel[order[i]]] = 1;
  offer(set);
  return set;
}

void Incumbent::offer_closed(const SubsetProblem& problem) {
  if (problem.k < 0 || problem.k > problem.m()) return;
  offer_rounded(problem, Vector<double>::Zero(problem.m()));
}

void Incumbent::offer_exchanged(const ChannelSet& set) {
  offer(set);
  offer(exchange_channels(H_, set, fixed_));
}

SubsetProblem whole_problem(const Matrix<double>& H, Index n, const ChannelSet& fixed) {
  SubsetProblem problem;
  for (Index c = 0; c < H.rows(); ++c)
    if (fixed.empty() || fixed[c] == 0) problem.channel.push_back(c);
  problem.A = H(problem.channel, problem.channel);
  problem.linear = Vector<double>::Zero(problem.A.rows());
  problem.k = n;
  const double mean = problem.A.trace() / static_cast<double>(std::max<Index>(problem.m(), 1));
  problem.size = (problem.A.diagonal().array().abs() + 1e-30 * mean).sqrt();
  return problem;
}

std::optional<Index> few_subsets(Index m, Index k) {
  constexpr Index kFew = Index{1} << 19;
  // Most of many: a choice takes as many steps as members, and the tree search is short.
  if (m > 20 && k > m / 2) return std::nullopt;
  k = std::min(k, m - k);
  Index subsets = 1;
  for (Index i = 0; i < k; ++i) {
    subsets = subsets * (m - i) / (i + 1);
    if (subsets > kFew) return std::nullopt;
  }
  return subsets;
}

ChannelSet best_of_all(const SubsetProblem& problem, Index d) {
  const Enumeration all(problem);
  ChannelSet set(d, 0);
  for (const Index c : problem.taken) set[c] = 1;
  for (const Index c : all.best()) set[problem.channel[c]] = 1;
  return set;
}

double row_bound(const SubsetProblem& problem) {
  std::vector<double> parts, others;
  for (Index c = 0; c < problem.m(); ++c) {
    others.assign(problem.A.row(c).begin(), problem.A.row(c).end());
    others.erase(others.begin() + c);
    std::nth_element(others.begin(), others.begin() + (problem.k - 1), others.end());
    double part = problem.A(c, c) + problem.linear[c];
    for (Index i = 0; i + 1 < problem.k; ++i) part += others[i];
    parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end());
  double bound = problem.constant;
  for (Index i = 0; i < problem.k; ++i) bound += parts[i];
  return bound;
}

SearchEnd search_tree(const ConvexProblem& root, Index most_nodes, Incumbent& best) {
  const SubsetProblem& convex = root.convex;
  SearchEnd end{.bound = root.bound, .nodes = 0};
  if (convex.closed()) {
    best.offer_closed(convex);
    end.bound = best.limit();
    return end;
  }
  Node first{.bound = root.bound, .choices = Choices(convex.m(), Choice::kOpen), .x = {}};
  first.x.resize(convex.m());
  std::priority_queue<Node, std::vector<Node>, LaterThan> open;
  if (settle_open(root.tangent, best.limit(), first, convex.k))
    best.offer_closed(reduced(convex, first.choices));
  else
    open.push(std::move(first));

  Index number = 0;
  while (!open.empty() && open.top().bound < best.limit() && end.nodes < most_nodes) {
    const Node parent = open.top();
    open.pop();
    for (const Choice choice : {Choice::kIn, Choice::kOut}) {
      Node node = parent;
      node.choices[parent.branch] = choice;
      node.number = ++number;
      ++end.nodes;
      const SubsetProblem problem = reduced(convex, node.choices);
      if (problem.closed()) {
        best.offer_closed(problem);
        continue;
      }
      const Until until{.enough = best.limit(),
                        .precision = 0.1 * (best.limit() - parent.bound),
                        .most_steps = 2 * problem.m() + 64};
      const Tangent tangent = lowest_tangent(problem, feasible(start_of(node), problem.k), until);
      const ChannelSet rounded = best.offer_rounded(problem, tangent.x);
      if (node.number % kNodesPerExchange == 0) best.offer_exchanged(rounded);
      node.bound = std::max(parent.bound, tangent.bound);
      if (node.bound >= best.limit()) continue;
      if (settle_open(tangent, best.limit(), node, problem.k))
        best.offer_closed(reduced(convex, node.choices));
      else
        open.push(std::move(node));
    }
  }
  end.bound = open.empty() ? best.limit() : open.top().bound;
  return end;
}

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
