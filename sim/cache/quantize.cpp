#include "sim/cache/quantize.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

void require_sensible(const Quantization& quantization) {
  assert(quantization.bits == 2 || quantization.bits == 4 || quantization.bits == 8);
  assert(quantization.group >= 1 && quantization.residual >= 0);
  static_cast<void>(quantization);
}

/// The numbers that a group can be read back as. In float64: in float32, an x far up the grid would know its
/// place to 1e-4 of a step only.
template <class T>
class Grid {
 public:
  /// No numbers, until some are added.
  Grid() = default;

  void add(T x) {
    low_ = std::min(low_, x);
    high_ = std::max(high_, x);
  }

  /// To be called once all are added.
  void set_bits(Index bits) {
    last_ = (Index{1} << bits) - 1;
    const double low = static_cast<double>(low_), high = static_cast<double>(high_);
    unit_ = std::isfinite(high - low) ? 1.0 : 0.5;  // the range of float64s may be none itself
    step_ = (high * unit_ - low * unit_) / static_cast<double>(last_);
  }

  T nearest(T x) const {
    if (!(step_ > 0)) return x;  // a constant, or too narrow a range to be divided
    const double low = static_cast<double>(low_) * unit_;
    const auto at = static_cast<Index>((static_cast<double>(x) * unit_ - low) / step_ + 0.5);
    if (at >= last_) return high_;
    return static_cast<T>((low + step_ * static_cast<double>(at)) / unit_);
  }

 private:
  T low_ = std::numeric_limits<T>::max(), high_ = std::numeric_limits<T>::lowest();
  Index last_ = 0;
  double unit_ = 1, step_ = 0;
};

}  // namespace

Index quantized_keys(Index n, const Quantization& quantization) {
  return quantized_values(n, quantization) / quantization.group * quantization.group;
}

Index quantized_values(Index n, const Quantization& quantization) {
  require_sensible(quantization);
  return std::max<Index>(n - quantization.residual, 0);
}

template <class T>
void quantize_keys(Matrix<T>& k, const std::vector<Index>& tokens, const ChannelSet& pruned,
                   const KeptSet& prunable, const Quantization& quantization) {
  const Index d = k.cols(), end = quantized_keys(std::ssize(tokens), quantization);
  std::vector<Grid<T>> grids;
  for (Index begin = 0; begin < end; begin += quantization.group) {
    const auto for_stored = [&](const auto& body) {
      for (Index n = begin; n < begin + quantization.group; ++n) {
        const Index p = tokens[n];
        const bool all = pruned.empty() || prunable[p] == 0;
        for (Index c = 0; c < d; ++c)
          if (all || pruned[c] == 0) body(k(p, c), grids[c]);
      }
    };
    grids.assign(d, Grid<T>());
    for_stored([](T x, Grid<T>& grid) { grid.add(x); });
    for (Grid<T>& grid : grids) grid.set_bits(quantization.bits);
    for_stored([](T& x, const Grid<T>& grid) { x = grid.nearest(x); });
  }
}

template <class T>
void quantize_values(Matrix<T>& v, const std::vector<Index>& tokens, const Quantization& quantization) {
  const Index d_v = v.cols(), end = quantized_values(std::ssize(tokens), quantization);
  for (Index n = 0; n < end; ++n) {
    T* row = v.data() + tokens[n] * d_v;
    for (Index begin = 0; begin < d_v; begin += quantization.group) {
      const Index past = std::min(begin + quantization.group, d_v);
      Grid<T> grid;
      for (Index c = begin; c < past; ++c) grid.add(row[c]);
      grid.set_bits(quantization.bits);
      for (Index c = begin; c < past; ++c) row[c] = grid.nearest(row[c]);
    }
  }
}

template decltype(quantize_keys<float>) quantize_keys<float>;
template decltype(quantize_keys<double>) quantize_keys<double>;
template decltype(quantize_values<float>) quantize_values<float>;
template decltype(quantize_values<double>) quantize_values<double>;

}  // namespace kvreplay
