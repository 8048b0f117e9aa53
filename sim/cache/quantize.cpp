#include "sim/cache/quantize.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <span>
#include <string>

namespace kvreplay {
namespace {

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

Quantization Quantization::kivi(Index bits, Index group, Index residual) {
  const auto format = kNumberFormats.named(std::to_string(bits));
  assert(format && kNumberFormats[*format].uniform);
  return {{*format, true}, {*format}, group, residual};
}

Index quantized_keys(Index n, const Quantization& quantization) {
  const Index old = std::max<Index>(n - quantization.residual, 0);
  if (quantization.k.format == NumberFormat::exact) return 0;
  return quantization.k.per_channel ? old / quantization.group * quantization.group : old;
}

Index quantized_values(Index n, const Quantization& quantization) {
  if (quantization.v.format == NumberFormat::exact) return 0;
  return std::max<Index>(n - quantization.residual, 0);
}

namespace {

/// Groups of tokens, a channel at a time.
template <class T>
void quantize_channels(Matrix<T>& m, const std::vector<Index>& tokens, Index end, const ChannelSet& pruned,
                       const KeptSet& prunable, Index bits, Index group) {
  std::vector<Grid<T>> grids;
  for (Index begin = 0; begin < end; begin += group) {
    const auto for_stored = [&](const auto& body) {
      for (Index n = begin; n < begin + group; ++n) {
        const Index p = tokens[n];
        const bool all = pruned.empty() || prunable[p] == 0;
        for (Index c = 0; c < m.cols(); ++c)
          if (all || pruned[c] == 0) body(m(p, c), grids[c]);
      }
    };
    grids.assign(m.cols(), Grid<T>());
    for_stored([](T x, Grid<T>& grid) { grid.add(x); });
    for (Grid<T>& grid : grids) grid.set_bits(bits);
    for_stored([](T& x, const Grid<T>& grid) { x = grid.nearest(x); });
  }
}

/// Groups of channels of one token.
template <class T>
void quantize_token(std::span<T> row, const ChannelSet& lost, Index bits, Index group) {
  const auto is_stored = [&](Index c) { return lost.empty() || lost[c] == 0; };
  for (Index begin = 0; begin < std::ssize(row); begin += group) {
    const Index past = std::min<Index>(begin + group, std::ssize(row));
    Grid<T> grid;
    for (Index c = begin; c < past; ++c)
      if (is_stored(c)) grid.add(row[c]);
    grid.set_bits(bits);
    for (Index c = begin; c < past; ++c)
      if (is_stored(c)) row[c] = grid.nearest(row[c]);
  }
}

/// The first `end` of the tokens.
template <class T>
void quantize(Matrix<T>& m, const std::vector<Index>& tokens, Index end, const StoredAs& as,
              const ChannelSet& pruned, const KeptSet& prunable, Index group) {
  const NumberFormatFacts& facts = kNumberFormats[as.format];
  assert(group >= 1 && (pruned.empty() || (facts.uniform && as.turned == 0)));
  const auto row = [&](Index n) {
    return std::span<T>(m.data() + tokens[n] * m.cols(), static_cast<std::size_t>(m.cols()));
  };
  const auto turn_all = [&] {
    for (Index n = 0; as.turned > 0 && n < end; ++n) turn(row(n), as.turned);
  };
  turn_all();
  double largest = 0;
  for (Index n = 0; as.format == NumberFormat::nvfp4 && n < end; ++n)
    for (const T x : row(n)) largest = std::max(largest, std::abs(static_cast<double>(x)));
  if (as.per_channel)
    quantize_channels(m, tokens, end, pruned, prunable, facts.bits, group);
  else
    for (Index n = 0; n < end; ++n) {
      const bool loses = !pruned.empty() && prunable[tokens[n]] != 0;
      if (facts.uniform)
        quantize_token(row(n), loses ? pruned : ChannelSet(), facts.bits, group);
      else
        read_back(as.format, row(n), largest, as.scale);
    }
  turn_all();
}

}  // namespace

template <class T>
void quantize_keys(Matrix<T>& k, const std::vector<Index>& tokens, const ChannelSet& pruned,
                   const KeptSet& prunable, const Quantization& quantization) {
  quantize(k, tokens, quantized_keys(std::ssize(tokens), quantization), quantization.k, pruned, prunable,
           quantization.group);
}

template <class T>
void quantize_values(Matrix<T>& v, const std::vector<Index>& tokens, const Quantization& quantization) {
  quantize(v, tokens, quantized_values(std::ssize(tokens), quantization), quantization.v, {}, {},
           quantization.group);
}

template decltype(quantize_keys<float>) quantize_keys<float>;
template decltype(quantize_keys<double>) quantize_keys<double>;
template decltype(quantize_values<float>) quantize_values<float>;
template decltype(quantize_values<double>) quantize_values<double>;

}  // namespace kvreplay
