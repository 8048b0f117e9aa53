#pragma once

#include "sim/channels/subset.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

// Random matrices of channel interactions, and the definition of a set's error.

namespace kvreplay::test {

/// (K'K) o (Q'Q) of normal K and Q, their columns log-normal in size.
struct ChannelSpec {
  Index d = 8;
  Index keys = 40, queries = 12;
  double mean = 0;      ///< of every channel, in its deviations: neighbours' signs fall and rise together
  double spread = 0.5;  ///< of the log of the columns' sizes
  bool cancel = false;  ///< channels 2c and 2c + 1 nearly cancel: their sum is a tenth of each
  std::uint64_t seed = 1;
};

inline std::string name_of(const ChannelSpec& s) {
  return "d " + std::to_string(s.d) + ", mean " + std::to_string(s.mean) + ", spread " +
         std::to_string(s.spread) + (s.cancel ? ", cancelling" : "") + ", seed " + std::to_string(s.seed);
}

/// Sums of uniform numbers: the same on every machine.
inline double normal(std::mt19937_64& bits) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += std::ldexp(static_cast<double>(bits() >> 11), -53);
  return sum;
}

inline Matrix<double> channel_matrix(const ChannelSpec& spec) {
  std::mt19937_64 bits(spec.seed * 7919 + static_cast<std::uint64_t>(spec.d));
  const auto random = [&](Index rows) {
    Matrix<double> x(rows, spec.d);
    for (double& entry : x.reshaped()) entry = normal(bits);
    for (Index c = 0; c < spec.d; ++c) {
      const double mean = spec.mean * normal(bits), size = std::exp(spec.spread * normal(bits));
      x.col(c) = (x.col(c).array() + mean) * size;
    }
    return x;
  };
  Matrix<double> K = random(spec.keys), Q = random(spec.queries);
  for (Index c = 0; spec.cancel && c + 1 < spec.d; c += 2) {
    K.col(c + 1) = 0.1 * K.col(c + 1) - K.col(c);
    Q.col(c + 1) = 0.1 * Q.col(c + 1) + Q.col(c);
  }
  return (K.transpose() * K).cwiseProduct(Q.transpose() * Q);
}

/// Plain, with means, of wide range, of low rank, and with pairs that cancel, of every width.
inline std::vector<ChannelSpec> channel_specs(const std::vector<Index>& widths) {
  std::vector<ChannelSpec> specs;
  for (const Index d : widths) {
    specs.push_back({.d = d});
    specs.push_back({.d = d, .mean = 1.5, .seed = 2});
    specs.push_back({.d = d, .spread = 2.5, .seed = 3});
    specs.push_back({.d = d, .keys = 3, .queries = 2, .seed = 4});
    specs.push_back({.d = d, .mean = 0.5, .cancel = true, .seed = 5});
  }
  return specs;
}

inline bool holds(const ChannelSet& set, Index c) { return !set.empty() && set[c] != 0; }

/// n of d channels.
inline ChannelSet random_channels(Index d, Index n, std::uint64_t seed) {
  ChannelSet set(static_cast<std::size_t>(d), 0);
  std::fill(set.begin(), set.begin() + n, 1);
  std::mt19937_64 bits(seed);
  for (std::size_t c = set.size(); c > 1; --c) std::swap(set[c - 1], set[bits() % c]);
  return set;
}

inline double naive_error(const Matrix<double>& H, const std::vector<Index>& channels) {
  double error = 0;
  for (const Index c : channels)
    for (const Index e : channels) error += H(c, e);
  return error;
}

}  // namespace kvreplay::test
