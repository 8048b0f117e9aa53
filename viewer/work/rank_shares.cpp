#include "viewer/work/rank_shares.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace kvreplay::viewer {
namespace {

template <class T>
void rank(std::span<T> values) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  const std::size_t last = order.size() > 1 ? order.size() - 1 : 1;
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    const T place = static_cast<T>(first + end - 1) / static_cast<T>(2 * last);
    for (; first < end; ++first) values[order[first]] = place;
  }
}

}  // namespace

void rank_shares(std::span<float> values) { rank(values); }
void rank_shares(std::span<double> values) { rank(values); }

}  // namespace kvreplay::viewer
