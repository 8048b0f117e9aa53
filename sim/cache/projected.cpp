#include "sim/cache/cache_outputs.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <vector>

namespace kvreplay {
namespace {

/// A slice of W_O is copied out, for its rows lie a power of two apart, which a cache holds few of, and
/// serves so many panels while their outputs stay in a core's cache.
constexpr Index kOutputsAtOnce = 96, kPanelsAtOnce = 48;

}  // namespace

template <class T>
std::vector<double> projected_sq(std::span<const LayerRows<T>> cases, const std::vector<Matrix<T>>& wo,
                                 Workers& workers) {
  constexpr Index W = kPanelWidth<T>;
  const Index d_v = wo.front().rows(), d_model = wo.front().cols(), n_cases = std::ssize(cases);
  if (n_cases == 0) return {};
  const Index panels = std::ssize(*cases.front().front()) / (d_v * W), all = n_cases * panels;
  const Index slices = div_up(d_model, kOutputsAtOnce), groups = div_up(all, kPanelsAtOnce);
  std::vector<double> squares(slices * all);
  workers.parallel_for(slices * groups, [&](Index item) {
    const Index slice = item / groups, first = slice * kOutputsAtOnce,
                n = std::min(kOutputsAtOnce, d_model - first);
    const Index from = item % groups * kPanelsAtOnce, to = std::min(from + kPanelsAtOnce, all);
    Matrix<T> weights(d_v, n);
    std::vector<T> out((to - from) * n * W);
    for (std::size_t h = 0; h < wo.size(); ++h) {
      weights = wo[h].middleCols(first, n);
      for (Index p = from; p < to; ++p)
        kept_tiles_simd<T>().project_panel(weights.data(), d_v, n,
                                           cases[p / panels][h]->data() + p % panels * d_v * W,
                                           out.data() + (p - from) * n * W);
    }
    value_rows_simd<T>().row_squares(out.data(), to - from, n * W, squares.data() + slice * all + from);
  });
  std::vector<double> sums(n_cases, 0.0);
  for (Index slice = 0; slice < slices; ++slice)
    for (Index p = 0; p < all; ++p) sums[p / panels] += squares[slice * all + p];
  return sums;
}

template decltype(projected_sq<float>) projected_sq<float>;
template decltype(projected_sq<double>) projected_sq<double>;

}  // namespace kvreplay
