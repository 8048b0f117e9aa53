#pragma once

#include "sim/cuda/kernel.hpp"

#include <cmath>
#include <cstdint>

#if !defined(__CUDACC__)
#include "data/dtype.hpp"
#endif

// Half-precision numbers (IEEE binary16) by their bits.

namespace kvreplay::cuda {

using HalfBits = std::uint16_t;

/// The nearest, ties to even; infinite beyond 65504.
KVREPLAY_DEVICE HalfBits to_half(float x) {
#if defined(__CUDACC__)
  HalfBits bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  return float_to_half(x);
#endif
}

KVREPLAY_DEVICE float from_half(HalfBits bits) {
#if defined(__CUDACC__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  return half_to_float(bits);
#endif
}

/// A number as the sum of two halves: to 2^-22 of its size, or 2^-25 where it is below 2^-3.
struct HalfPair {
  HalfBits high, low;
};
KVREPLAY_DEVICE HalfPair split(float x) {
  const HalfBits high = to_half(x);
  return {high, to_half(x - from_half(high))};
}

/// Two neighbours of a row in one register.
KVREPLAY_DEVICE std::uint32_t packed(HalfBits first, HalfBits second) {
  return static_cast<std::uint32_t>(first) | static_cast<std::uint32_t>(second) << 16U;
}

/// The largest power of two with which numbers up to `largest` stay below 2^15; 1 where all are 0.
KVREPLAY_DEVICE float half_unit(float largest) {
  if (!(largest > 0)) return 1;
  int exponent = 0;
  std::frexp(largest, &exponent);
  // Beyond these a power of two, its reciprocal or 2^-14 of either is not a normal float.
  const int unit = larger(smaller(exponent - 15, 112), -112);
  return std::ldexp(1.0F, unit);
}

/// 1 / unit, exactly, of a power of two that is a normal float as its reciprocal is.
KVREPLAY_DEVICE float per_unit_of(float unit) { return as_float((254U << 23U) - as_bits(unit)); }

}  // namespace kvreplay::cuda
