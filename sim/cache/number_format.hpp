#pragma once

#include "data/dump.hpp"
#include "data/facts_table.hpp"
#include "sim/head_matrix.hpp"

#include <span>
#include <string_view>

// Storage formats of a cache's numbers, and the values that reading them back gives. Definitions:
// sim/cache/FORMATS.md.

namespace kvreplay {

enum class NumberFormat {
  exact,
  int2,
  int3,
  int4,
  int5,
  int6,
  int8,
  q8_0,
  q5_1,
  q5_0,
  q4_1,
  q4_0,
  fp8,
  fp8_per_token_head,
  int8_per_token_head,
  int8_per_tensor,
  mxfp8,
  mxfp4,
  nvfp4,
  tq2,
  tq3,
  tq4
};

struct NumberFormatFacts {
  NumberFormat id;
  std::string_view name;
  std::string_view meaning;   ///< one line
  int bits;                   ///< a number
  bool uniform = false;       ///< equal steps between the ends of a group, along tokens or channels
  Index block = 0;            ///< numbers of a token that share a scale; 0: all of them
  Index scale_bytes = 0;      ///< of each block, or group
  bool tensor_scale = false;  ///< one scale for all numbers of a layer, which is given or 1
};

inline constexpr auto kNumberFormats = facts_table<NumberFormatFacts>({
    {.id = NumberFormat::exact, .name = "16", .meaning = "As it is, in 16 bits", .bits = 16},
    {.id = NumberFormat::int2,
     .name = "2",
     .meaning = "KIVI: 4 even steps a group",
     .bits = 2,
     .uniform = true,
     .scale_bytes = 4},
    {.id = NumberFormat::int3,
     .name = "3",
     .meaning = "8 even steps a group",
     .bits = 3,
     .uniform = true,
     .scale_bytes = 4},
    {.id = NumberFormat::int4,
     .name = "4",
     .meaning = "KIVI: 16 even steps a group",
     .bits = 4,
     .uniform = true,
     .scale_bytes = 4},
    {.id = NumberFormat::int5,
     .name = "5",
     .meaning = "32 even steps a group",
     .bits = 5,
     .uniform = true,
     .scale_bytes = 4},
    {.id = NumberFormat::int6,
     .name = "6",
     .meaning = "64 even steps a group",
     .bits = 6,
     .uniform = true,
     .scale_bytes = 4},
    {.id = NumberFormat::int8,
     .name = "8",
     .meaning = "256 even steps a group",
     .bits = 8,
     .uniform = true,
     .scale_bytes = 4},
    {.id = NumberFormat::q8_0,
     .name = "q8_0",
     .meaning = "llama.cpp: 8 bits around 0, a 16-bit scale for 32",
     .bits = 8,
     .block = 32,
     .scale_bytes = 2},
    {.id = NumberFormat::q5_1,
     .name = "q5_1",
     .meaning = "llama.cpp: 5 bits from a minimum, it and the scale in 16 bits for 32",
     .bits = 5,
     .block = 32,
     .scale_bytes = 4},
    {.id = NumberFormat::q5_0,
     .name = "q5_0",
     .meaning = "llama.cpp: 5 bits around 0, a 16-bit scale for 32",
     .bits = 5,
     .block = 32,
     .scale_bytes = 2},
    {.id = NumberFormat::q4_1,
     .name = "q4_1",
     .meaning = "llama.cpp: 4 bits from a minimum, it and the scale in 16 bits for 32",
     .bits = 4,
     .block = 32,
     .scale_bytes = 4},
    {.id = NumberFormat::q4_0,
     .name = "q4_0",
     .meaning = "llama.cpp: 4 bits around 0, a 16-bit scale for 32",
     .bits = 4,
     .block = 32,
     .scale_bytes = 2},
    {.id = NumberFormat::fp8,
     .name = "fp8",
     .meaning = "vLLM, SGLang: E4M3 with a scale a layer (--scales, or 1), up to 448 times it",
     .bits = 8,
     .tensor_scale = true},
    {.id = NumberFormat::fp8_per_token_head,
     .name = "fp8_per_token_head",
     .meaning = "vLLM: E4M3, a 32-bit scale a token",
     .bits = 8,
     .scale_bytes = 4},
    {.id = NumberFormat::int8_per_token_head,
     .name = "int8_per_token_head",
     .meaning = "vLLM: 8 bits around 0, a 32-bit scale a token",
     .bits = 8,
     .scale_bytes = 4},
    {.id = NumberFormat::int8_per_tensor,
     .name = "int8",
     .meaning = "8 bits around 0 with a scale a layer (--scales, or 1), up to 127 times it",
     .bits = 8,
     .tensor_scale = true},
    {.id = NumberFormat::mxfp8,
     .name = "mxfp8",
     .meaning = "OCP MX: E4M3, a power of two for 32",
     .bits = 8,
     .block = 32,
     .scale_bytes = 1},
    {.id = NumberFormat::mxfp4,
     .name = "mxfp4",
     .meaning = "OCP MX: E2M1, a power of two for 32",
     .bits = 4,
     .block = 32,
     .scale_bytes = 1},
    {.id = NumberFormat::nvfp4,
     .name = "nvfp4",
     .meaning = "NVIDIA: E2M1, an E4M3 scale for 16 and one for the head",
     .bits = 4,
     .block = 16,
     .scale_bytes = 1},
    {.id = NumberFormat::tq2,
     .name = "tq2",
     .meaning = "TurboQuant: 4 levels of a rotated direction, its norm in 16 bits",
     .bits = 2,
     .scale_bytes = 2},
    {.id = NumberFormat::tq3,
     .name = "tq3",
     .meaning = "TurboQuant: 8 levels of a rotated direction, its norm in 16 bits",
     .bits = 3,
     .scale_bytes = 2},
    {.id = NumberFormat::tq4,
     .name = "tq4",
     .meaning = "TurboQuant: 16 levels of a rotated direction, its norm in 16 bits",
     .bits = 4,
     .scale_bytes = 2},
});
constexpr std::string_view name_of(NumberFormat format) { return kNumberFormats[format].name; }
/// llama.cpp's formats, whose names are ggml's.
constexpr bool of_ggml(NumberFormat format) { return name_of(format).starts_with('q'); }
/// Levels of a direction that a Hadamard matrix has turned (vLLM's reading of TurboQuant).
constexpr bool turns(NumberFormat format) {
  return format == NumberFormat::tq2 || format == NumberFormat::tq3 || format == NumberFormat::tq4;
}

/// Replaces one token's n numbers with the values that reading them back from `format` gives. Not for uniform
/// formats, whose groups may lie along tokens. `largest`: largest magnitude of all stored numbers of the head
/// (nvfp4). `scale`: that of formats with a tensor_scale. n is a multiple of the format's block; for tq a
/// power of two.
template <class T>
void read_back(NumberFormat format, std::span<T> numbers, double largest, double scale = 1);

/// The orthonormal Hadamard matrix (Sylvester's) of `block` numbers, a power of two that divides their
/// number, on each block. It is its own inverse.
template <class T>
void turn(std::span<T> numbers, Index block);

/// The largest power of two that divides n.
constexpr Index turning_block(Index n) { return n & -n; }

/// The 2^bits levels of least squared error for N(0, 1), ascending (Lloyd-Max).
std::span<const double> gaussian_levels(int bits);

/// x to the nearest float of `mantissa` bits, ties to even, down to exponent `least`, and no larger than
/// `most`.
double rounded_to_float(double x, int mantissa, int least, double most);
inline double rounded_to_fp16(double x) { return rounded_to_float(x, 10, -14, 65504); }
inline double rounded_to_e4m3(double x) { return rounded_to_float(x, 3, -6, 448); }
inline double rounded_to_e2m1(double x) { return rounded_to_float(x, 1, 0, 6); }

}  // namespace kvreplay
