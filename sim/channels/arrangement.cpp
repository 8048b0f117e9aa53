#include "sim/channels/arrangement.hpp"

#include "data/error.hpp"
#include "sim/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace kvreplay {
namespace {

constexpr double kLast = std::numeric_limits<double>::infinity();

std::vector<Index> as_stored(Index d) {
  std::vector<Index> order(static_cast<std::size_t>(d));
  std::iota(order.begin(), order.end(), Index{0});
  return order;
}

/// Ascending by what `of` says of a channel.
template <class Of>
std::vector<Index> sorted_by(Index d, const Of& of) {
  std::vector<Index> order = as_stored(d);
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return of(a) < of(b); });
  return order;
}

/// By the lower channel of each pair.
std::vector<Index> in_pairs(const std::vector<Index>& partner) {
  const Index d = std::ssize(partner);
  return sorted_by(d, [&](Index c) { return partner[c] < 0 ? d + c : std::min(c, partner[c]); });
}

/// |H_ce| / sqrt(H_cc H_ee); 0 where a channel has no weight of its own.
Matrix<double> likeness(const Matrix<double>& H) {
  Matrix<double> like = Matrix<double>::Zero(H.rows(), H.cols());
  for (Index c = 0; c < H.rows(); ++c)
    for (Index e = 0; e < H.cols(); ++e) {
      const double scale = std::sqrt(H(c, c)) * std::sqrt(H(e, e));
      const double share = std::abs(H(c, e)) / scale;
      if (scale > 0 && std::isfinite(share)) like(c, e) = share;
    }
  return like;
}

using Cluster = std::vector<Index>;

/// One behind the other, turned so that the most alike of their ends meet.
Cluster joined(Cluster first, Cluster second, const Matrix<double>& like) {
  double best = -1;
  bool turn_first = false, turn_second = false;
  for (const bool turns_first : {false, true})
    for (const bool turns_second : {false, true}) {
      const double met =
          like(turns_first ? first.front() : first.back(), turns_second ? second.back() : second.front());
      if (met <= best) continue;
      best = met;
      turn_first = turns_first;
      turn_second = turns_second;
    }
  if (turn_first) std::reverse(first.begin(), first.end());
  if (turn_second) std::reverse(second.begin(), second.end());
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Joins the two most alike clusters until one is left; how alike two are is the mean over their channels.
std::vector<Index> in_clusters(const Matrix<double>& H) {
  const Matrix<double> like = likeness(H);
  Matrix<double> mean = like;
  std::vector<Cluster> clusters;
  for (Index c = 0; c < H.rows(); ++c) clusters.push_back({c});
  std::vector<Index> open = as_stored(H.rows());  // clusters that are left
  while (open.size() > 1) {
    std::size_t first = 0, second = 1;
    for (std::size_t i = 0; i < open.size(); ++i)
      for (std::size_t j = i + 1; j < open.size(); ++j)
        if (mean(open[i], open[j]) > mean(open[first], open[second])) {
          first = i;
          second = j;
        }
    const Index a = open[first], b = open[second];
    const auto n_a = static_cast<double>(clusters[a].size()), n_b = static_cast<double>(clusters[b].size());
    for (const Index other : open)
      mean(a, other) = mean(other, a) = (n_a * mean(a, other) + n_b * mean(b, other)) / (n_a + n_b);
    clusters[a] = joined(std::move(clusters[a]), std::move(clusters[b]), like);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(second));
  }
  std::vector<Index> order = open.empty() ? Cluster{} : std::move(clusters[open.front()]);
  if (!order.empty() && order.front() > order.back()) std::reverse(order.begin(), order.end());
  return order;
}

void check_size(std::size_t found, Index d, const char* what) {
  if (found == static_cast<std::size_t>(d)) return;
  throw InputError(what, std::to_string(d) + " channels", std::to_string(found));
}

}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, Index d) {
  std::vector<double> frequency(static_cast<std::size_t>(d), 0.0);
  for (Index j = 0; j < rope.rotary_dim / 2; ++j) {
    const auto [a, b] = rotated_pair(rope, j);
    frequency[a] = frequency[b] = rope.inv_freq[j];
  }
  return frequency;
}

std::vector<Index> arranged_channels(ChannelArrangement arrangement, const Matrix<double>& H,
                                     const std::vector<Index>& partner,
                                     const std::vector<double>& frequency) {
  const Index d = H.rows();
  if (kChannelArrangements[arrangement].needs_pairs) check_size(partner.size(), d, "rotation partners");
  if (kChannelArrangements[arrangement].needs_frequencies)
    check_size(frequency.size(), d, "rotation frequencies");
  switch (arrangement) {
    case ChannelArrangement::stored:
      return as_stored(d);
    case ChannelArrangement::pairs:
      return in_pairs(partner);
    case ChannelArrangement::frequency:
      return sorted_by(d, [&](Index c) { return frequency[c]; });
    case ChannelArrangement::energy:
      return sorted_by(d, [&](Index c) { return std::isnan(H(c, c)) ? kLast : -H(c, c); });
    case ChannelArrangement::clusters:
      return in_clusters(H);
  }
  throw InputError("no such arrangement of channels");
}

}  // namespace kvreplay
