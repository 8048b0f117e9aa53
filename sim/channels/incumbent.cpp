#include "sim/channels/incumbent.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay {

namespace {}  // namespace

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

}  // namespace kvreplay
