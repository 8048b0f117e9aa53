#pragma once

#include "data/dtype.hpp"
#include "data/dump.hpp"

#include <bit>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <vector>

namespace kvreplay {

/// A seeded synthetic dump with the structures that eviction methods live or die by, planted at known places.
struct SynthOptions {
  Index layers = 2;
  Index q_heads = 4;  ///< a multiple of kv_heads
  Index kv_heads = 2;
  Index head_dim = 64;  ///< even; d_v is the same
  Index prompt = 256;
  Index decode = 32;
  Dtype dtype = Dtype::f32;
  Index seed = 1;
  /// S of random gradients, which no model has: of the last 32 prompt rows, the decoding steps, and their
  /// NLL.
  Index gradients = 0;
};

/// Where things were planted; also written into the dump's manifest under "planted".
struct Planted {
  /// Positions that hold more than 0.99 of every later row's weight in sink heads.
  std::vector<Index> sinks;
  std::vector<Index> sink_kv_heads;  ///< per layer: the KV head that has the sink
  /// Positions that many rows look at, in all heads but sink heads. Empty with a single KV head (which has
  /// the sink) or a prompt below 8.
  std::vector<Index> heavy_hitters;
  std::vector<Index> outlier_channels;  ///< key channels of large norm; empty below head dimension 8
  /// A position that prompt rows ignore and the decoding steps need, in all heads but sink heads; -1 where
  /// there are no decoding steps or no heavy hitters.
  Index needle = -1;
};

/// Writes the dump to `folder`, made if missing; one that holds a manifest.json or layer_00 already, and
/// options that make no dump, are an InputError. Queries and keys carry the rotation that the manifest
/// states; o is computed in float64 from the rounded tensors and left out above 8192 positions, where its
/// O(T^2 d) would take minutes a head. The same options give the same bytes on every machine. Memory stays
/// that of one head.
Planted write_synthetic_dump(const std::filesystem::path& folder, const SynthOptions& options);

// Arithmetic whose results are the same bits on every machine with IEEE doubles: the library's exp, sin and
// cos and its random distributions differ between systems, and a synthetic dump must not.

/// e^x to a few units in the last place; 0 below -708. x is at most 700.
inline double portable_exp(double x) {
  constexpr double log2_e = 0x1.71547652b82fep+0;
  constexpr double ln2_high = 0x1.62e42feep-1,
                   ln2_low = 0x1.a39ef35793c76p-33;  // the high part times any n is exact
  constexpr double to_integer = 0x1.8p52;  // adding it leaves the nearest integer in the lowest bits
  const double shifted = x * log2_e + to_integer;
  const double n = shifted - to_integer;
  const double r = (x - n * ln2_high) - n * ln2_low;
  // Taylor's series; |r| <= ln(2) / 2.
  double sum = 1.0 / 6227020800.0;
  for (const double factorial : {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0,
                                 24.0, 6.0, 2.0, 1.0, 1.0}) {
    sum = sum * r + 1.0 / factorial;
  }
  const std::uint64_t exponent = std::bit_cast<std::uint64_t>(shifted) << 52;
  const double scaled = std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + exponent);
  return x < -708.0 ? 0.0 : scaled;
}

struct SinCos {
  double sin = 0, cos = 1;
};

/// Sine and cosine of an angle from 0 to 10^6 radians, to about 1e-15.
inline SinCos portable_sincos(double angle) {
  // pi/2 in two parts, of which the first has 33 bits: times a quarter-turn count below 2^20 it is exact.
  constexpr double half_pi_high = 0x1.921fb544p+0, half_pi_low = 0x1.0b4611a626331p-34;
  const std::int64_t quarter = static_cast<std::int64_t>(angle * 0x1.45f306dc9c883p-1 + 0.5);
  const double n = static_cast<double>(quarter);
  const double r = (angle - n * half_pi_high) - n * half_pi_low;
  const double square = r * r;
  double sine = 0, cosine = 0;
  for (int k = 18; k >= 2; k -= 2) {
    cosine = (cosine + 1.0) * (-square / (k * (k - 1)));
    sine = (sine + 1.0) * (-square / (k * (k + 1)));
  }
  sine = r + r * sine;
  cosine = 1.0 + cosine;
  switch (quarter & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

/// Random numbers that are a function of a key and a counter, so that any head can be made without those
/// before it.
class CounterRandom {
 public:
  explicit constexpr CounterRandom(std::uint64_t key) : key_(key) {}

  /// A stream of its own for every value of `stream`.
  constexpr CounterRandom stream(std::uint64_t stream) const {
    return CounterRandom(mix(key_ ^ mix(stream + 1)));
  }

  constexpr std::uint64_t bits(std::uint64_t i) const { return mix(key_ + (i + 1) * 0x9e3779b97f4a7c15u); }
  /// In [0, 1).
  constexpr double uniform(std::uint64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }
  /// Mean 0, variance 1, within 6: the sum of twelve uniforms, which takes neither logarithm nor cosine.
  constexpr double normal(std::uint64_t i) const {
    std::uint64_t sum = 0;
    for (std::uint64_t part = 0; part < 3; ++part) {
      const std::uint64_t word = bits(3 * i + part);
      sum += (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
    }
    return (static_cast<double>(sum) - 6.0 * 65535.0) * 0x1p-16;
  }

 private:
  /// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
  static constexpr std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::uint64_t key_;
};

}  // namespace kvreplay
