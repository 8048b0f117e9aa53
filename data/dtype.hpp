#pragma once

#include "data/facts_table.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvreplay {

/// The element types that a dump's tensors may have.
enum class Dtype { f16, bf16, f32, f64 };

struct DtypeFacts {
  Dtype id;
  std::string_view name;
  std::string_view descr;  ///< as `.npy` headers name it, little-endian; bfloat16 as ml_dtypes writes it
  std::size_t size;        ///< bytes
};
inline constexpr auto kDtypes = facts_table<DtypeFacts>({{Dtype::f16, "float16", "<f2", 2},
                                                         {Dtype::bf16, "bfloat16", "|V2", 2},
                                                         {Dtype::f32, "float32", "<f4", 4},
                                                         {Dtype::f64, "float64", "<f8", 8}});
constexpr std::size_t size_of(Dtype dtype) { return kDtypes[dtype].size; }
constexpr std::string_view name_of(Dtype dtype) { return kDtypes[dtype].name; }

// float16 and bfloat16 as bit patterns. Widening is exact and without branches, so that loops over it
// vectorise; narrowing rounds to nearest even.

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  // Moves the exponent's bias from 15 to 127; infinity and NaN need as much again to reach 255.
  const std::uint32_t normal = (magnitude << 13) + (112u << 23) + (magnitude >= 0x7c00u ? 112u << 23 : 0u);
  // A subnormal is a count of 2^-24.
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  return std::bit_cast<float>((magnitude < 0x400u ? std::bit_cast<std::uint32_t>(subnormal) : normal) | sign);
}

constexpr float bfloat_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);  // NaN
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above: infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the count of 2^-24, rounded to nearest even, in the sum's lowest bits.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

constexpr std::uint16_t float_to_bfloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace kvreplay
