#include "sim/channels/subset.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay {

namespace {

bool is_fixed(const ChannelSet& fixed, Index c) { return !fixed.empty() && fixed[c] != 0; }

std::vector<Index> unfixed(const ChannelSet& fixed, Index d) {
  std::vector<Index> channels;
  for (Index c = 0; c < d; ++c)
    if (!is_fixed(fixed, c)) channels.push_back(c);
  return channels;
}

/// The order in which the greedy search takes `left`, rows and columns of W, each weighed by `share` (one
/// over the channels that it stands for).
std::vector<Index> cheapest_first(const Matrix<double>& W, std::vector<Index> left,
                                  const Vector<double>& share) {
  std::vector<double> cost;
  for (const Index c : left) cost.push_back(W(c, c));
  std::vector<Index> order;
  order.reserve(left.size());
  while (!left.empty()) {
    std::size_t next = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < left.size(); ++i) {
      const double each = cost[i] * share[left[i]];
      if (each < least) {
        least = each;
        next = i;
      }
    }
    const Index taken = left[next];
    order.push_back(taken);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(next));
    cost.erase(cost.begin() + static_cast<std::ptrdiff_t>(next));
    const double* row = W.row(taken).data();
    for (std::size_t i = 0; i < left.size(); ++i) cost[i] += 2 * row[left[i]];
  }
  return order;
}

}  // namespace

double subset_error(const Matrix<double>& H, const ChannelSet& set) {
  double error = 0;
  for (Index c = 0; c < H.rows(); ++c) {
    if (set[c] == 0) continue;
    double row = 0;
    for (Index e = 0; e < H.cols(); ++e) row += set[e] != 0 ? H(c, e) : 0.0;
    error += row;
  }
  return error;
}

std::vector<Index> ascending_order(const Vector<double>& score, const ChannelSet& fixed) {
  std::vector<Index> order = unfixed(fixed, score.size());
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return score[a] < score[b]; });
  return order;
}

std::vector<Index> greedy_order(const Matrix<double>& H, const ChannelSet& fixed) {
  return cheapest_first(H, unfixed(fixed, H.rows()), Vector<double>::Ones(H.rows()));
}

std::vector<Index> greedy_order(const Matrix<double>& H, const std::vector<std::vector<Index>>& units,
                                const ChannelSet& fixed) {
  std::vector<const std::vector<Index>*> open;
  for (const std::vector<Index>& unit : units)
    if (!unit.empty() && std::none_of(unit.begin(), unit.end(), [&](Index c) { return is_fixed(fixed, c); }))
      open.push_back(&unit);

  const auto size = std::ssize(open);
  Matrix<double> W = Matrix<double>::Zero(size, size);
  Vector<double> share(size);
  for (Index a = 0; a < size; ++a) {
    share[a] = 1.0 / static_cast<double>(open[a]->size());
    for (Index b = 0; b < size; ++b)
      for (const Index c : *open[a])
        for (const Index e : *open[b]) W(a, b) += H(c, e);
  }

  std::vector<Index> all(open.size()), order;
  std::iota(all.begin(), all.end(), Index{0});
  for (const Index unit : cheapest_first(W, std::move(all), share))
    order.insert(order.end(), open[unit]->begin(), open[unit]->end());
  return order;
}

ChannelSet exchange_channels(const Matrix<double>& H, ChannelSet set, const ChannelSet& fixed) {
  const Index d = H.rows();
  // Bound on the rounding error of the sums below, relative to the sum of their terms' magnitudes. A swap
  // that gains more makes E(S) smaller in exact arithmetic too, so no set comes back.
  const double rounding = 2.0 * static_cast<double>(d + 8) * std::numeric_limits<double>::epsilon();
  Vector<double> coupling(d), magnitude(d), joining(d);
  while (true) {
    // Summed anew for every set: a channel of 1e8 times the others' size leaves no error behind when it goes.
    coupling.setZero();
    magnitude = H.diagonal().cwiseAbs();
    for (Index c = 0; c < d; ++c) {
      if (set[c] == 0) continue;
      coupling += H.row(c).transpose();
      magnitude += H.row(c).transpose().cwiseAbs();
    }
    for (Index e = 0; e < d; ++e) {
      const bool open = set[e] == 0 && !is_fixed(fixed, e);
      joining[e] = open ? H(e, e) + 2 * coupling[e] + rounding * magnitude[e]
                        : std::numeric_limits<double>::infinity();
    }
    double best = 0;
    Index leaves = -1, joins = -1;
    for (Index c = 0; c < d; ++c) {
      if (set[c] == 0) continue;
      const double leaving = H(c, c) - 2 * coupling[c] + rounding * magnitude[c];
      const double* row = H.row(c).data();
      const double least = (joining - 2 * H.row(c).transpose()).minCoeff() + leaving;
      if (!(least < best)) continue;
      best = least;
      leaves = c;
      for (joins = 0; joining[joins] - 2 * row[joins] + leaving > least;) ++joins;
    }
    if (leaves < 0) return set;
    set[leaves] = 0;
    set[joins] = 1;
  }
}

ChannelSet first_of(const std::vector<Index>& order, Index n, Index d) {
  ChannelSet set(d, 0);
  const Index size = std::min(n, std::ssize(order));
  for (Index i = 0; i < size; ++i) set[order[i]] = 1;
  return set;
}

}  // namespace kvreplay
