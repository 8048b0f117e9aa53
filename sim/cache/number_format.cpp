#include "sim/cache/number_format.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>
#include <vector>

namespace kvreplay {

double rounded_to_float(double x, int mantissa, int least, double most) {
  const double size = std::abs(x);
  if (!(size < most)) return std::copysign(most, x);
  if (size == 0) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(size), least) - mantissa);
  return std::copysign(std::min(std::nearbyint(size / step) * step, most), x);
}

namespace {

template <class T>
double largest_of(std::span<const T> numbers) {
  double largest = 0;
  for (const T x : numbers) largest = std::max(largest, std::abs(static_cast<double>(x)));
  return largest;
}

// Blocks as ggml stores them (quantize_row_q*_ref of ggml-quants.c): float32 throughout, scales and minima
// read back in 16 bits.

/// Around 0: codes -2^(bits-1) .. 2^(bits-1) - 1, the number of largest magnitude at the lower end.
template <class T>
void signed_block(std::span<T> block, int bits) {
  float end = 0, magnitude = 0;
  for (const T x : block)
    if (const auto f = static_cast<float>(x); std::abs(f) > magnitude) magnitude = std::abs(f), end = f;
  const auto half = static_cast<float>(1 << (bits - 1));
  const float step = end / -half, inverse = step != 0 ? 1.0F / step : 0.0F;
  const auto stored = static_cast<float>(rounded_to_fp16(step));
  for (T& x : block) {
    const int code = std::min(2 * static_cast<int>(half) - 1,
                              static_cast<int>(static_cast<float>(x) * inverse + (half + 0.5F)));
    x = static_cast<T>(static_cast<float>(code - static_cast<int>(half)) * stored);
  }
}

/// From a minimum: codes 0 .. 2^bits - 1.
template <class T>
void offset_block(std::span<T> block, int bits) {
  const auto [low_at, high_at] = std::ranges::minmax_element(block);
  const auto low = static_cast<float>(*low_at), high = static_cast<float>(*high_at);
  const int last = (1 << bits) - 1;
  const float step = (high - low) / static_cast<float>(last), inverse = step != 0 ? 1.0F / step : 0.0F;
  const auto stored = static_cast<float>(rounded_to_fp16(step)),
             stored_low = static_cast<float>(rounded_to_fp16(low));
  for (T& x : block) {
    const int code = std::min(last, static_cast<int>((static_cast<float>(x) - low) * inverse + 0.5F));
    x = static_cast<T>(static_cast<float>(code) * stored + stored_low);
  }
}

/// 8 bits around 0, -127 .. 127, halves away from it.
template <class T>
void even_block(std::span<T> block) {
  const auto step = static_cast<float>(largest_of<T>(block)) / 127.0F;
  const float inverse = step != 0 ? 1.0F / step : 0.0F;
  const auto stored = static_cast<float>(rounded_to_fp16(step));
  for (T& x : block) x = static_cast<T>(std::round(static_cast<float>(x) * inverse) * stored);
}

/// Numbers over a scale as floats of `round`, whose largest is `most`.
template <class T>
void scaled(std::span<T> numbers, double scale, double (*round)(double)) {
  for (T& x : numbers) x = scale > 0 ? static_cast<T>(round(static_cast<double>(x) / scale) * scale) : T{0};
}

double rounded_to_int8(double x) { return std::clamp(std::nearbyint(x), -128.0, 127.0); }

/// The power of two that a block is divided by (OCP MX 1.0, section 6.3): that of its largest number, less
/// that of the element's largest. E8M0 ends at 2^-127.
double power_of_two_scale(double largest, int element_exponent) {
  if (largest == 0) return 0;
  return std::ldexp(1.0, std::clamp(std::ilogb(largest) - element_exponent, -127, 127));
}

/// A direction in 2^bits levels a coordinate, brought back to length 1, and the norm: TurboQuant (arXiv
/// 2504.19874, algorithm 1) with a Hadamard matrix for the rotation and norm correction, as vLLM has it.
template <class T>
void turned_levels(std::span<T> numbers, int bits) {
  const auto n = std::ssize(numbers);
  double norm_sq = 0;
  for (const T x : numbers) norm_sq += static_cast<double>(x) * static_cast<double>(x);
  if (norm_sq == 0) return;
  const double norm = std::sqrt(norm_sq), deviation = 1 / std::sqrt(static_cast<double>(n));
  std::vector<double> direction(numbers.begin(), numbers.end());
  for (double& x : direction) x /= norm;
  turn<double>(direction, n);
  const std::span<const double> levels = gaussian_levels(bits);
  double length_sq = 0;
  for (double& x : direction) {
    std::size_t at = 0;
    while (at + 1 < levels.size() && x >= deviation * (levels[at] + levels[at + 1]) / 2) ++at;
    x = deviation * levels[at];
    length_sq += x * x;
  }
  turn<double>(direction, n);
  const double length = rounded_to_fp16(norm) / std::sqrt(length_sq);
  std::ranges::transform(direction, numbers.begin(), [&](double x) { return static_cast<T>(x * length); });
}

}  // namespace

std::span<const double> gaussian_levels(int bits) {
  static const auto tables = [] {
    std::array<std::vector<double>, 5> all;
    const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); };
    const auto below = [](double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; };
    for (std::size_t b = 1; b < all.size(); ++b) {
      const std::size_t count = std::size_t{1} << b;
      std::vector<double>& levels = all[b];
      for (std::size_t i = 0; i < count; ++i)
        levels.push_back(-3.5 + 7 * (static_cast<double>(i) + 0.5) / static_cast<double>(count));
      for (int round = 0; round < 2000; ++round) {
        std::vector<double> next;
        for (std::size_t i = 0; i < count; ++i) {
          const double low = i == 0 ? -40 : (levels[i - 1] + levels[i]) / 2,
                       high = i + 1 == count ? 40 : (levels[i] + levels[i + 1]) / 2;
          next.push_back((density(low) - density(high)) / (below(high) - below(low)));
        }
        levels = std::move(next);
      }
    }
    return all;
  }();
  assert(bits >= 1 && bits <= 4);
  return tables[static_cast<std::size_t>(bits)];
}

template <class T>
void turn(std::span<T> numbers, Index block) {
  const Index n = std::ssize(numbers);
  assert(block >= 1 && turning_block(block) == block && n % block == 0);
  const double scale = 1 / std::sqrt(static_cast<double>(block));
  std::vector<double> turned(numbers.begin(), numbers.end());
  for (Index half = 1; half < block; half *= 2)
    for (Index begin = 0; begin < n; begin += 2 * half)
      for (Index i = begin; i < begin + half; ++i) {
        const double a = turned[i], b = turned[i + half];
        turned[i] = a + b;
        turned[i + half] = a - b;
      }
  std::ranges::transform(turned, numbers.begin(), [&](double x) { return static_cast<T>(x * scale); });
}

template <class T>
void read_back(NumberFormat format, std::span<T> numbers, double largest, double scale) {
  const NumberFormatFacts& facts = kNumberFormats[format];
  assert(!facts.uniform);
  const auto each_block = [&](const auto& body) {
    const auto size = facts.block > 0 ? static_cast<std::size_t>(facts.block) : numbers.size();
    for (std::size_t begin = 0; begin < numbers.size(); begin += size) body(numbers.subspan(begin, size));
  };
  switch (format) {
    case NumberFormat::q5_0:
    case NumberFormat::q4_0:
      return each_block([&](std::span<T> block) { signed_block(block, facts.bits); });
    case NumberFormat::q5_1:
    case NumberFormat::q4_1:
      return each_block([&](std::span<T> block) { offset_block(block, facts.bits); });
    case NumberFormat::q8_0:
      return each_block([&](std::span<T> block) { even_block(block); });
    case NumberFormat::fp8:
      return scaled(numbers, scale, rounded_to_e4m3);
    case NumberFormat::fp8_per_token_head:
      return scaled(numbers, static_cast<float>(largest_of<T>(numbers) / 448), rounded_to_e4m3);
    case NumberFormat::int8_per_token_head:
      return scaled(numbers, static_cast<float>(largest_of<T>(numbers) / 127), rounded_to_int8);
    case NumberFormat::int8_per_tensor:
      return scaled(numbers, scale, rounded_to_int8);
    case NumberFormat::mxfp8:
      return each_block([&](std::span<T> block) {
        scaled(block, power_of_two_scale(largest_of<T>(block), 8), rounded_to_e4m3);
      });
    case NumberFormat::mxfp4:
      return each_block([&](std::span<T> block) {
        scaled(block, power_of_two_scale(largest_of<T>(block), 2), rounded_to_e2m1);
      });
    case NumberFormat::nvfp4: {
      const double whole = largest / (448 * 6);
      return each_block([&](std::span<T> block) {
        const double own = whole > 0 ? rounded_to_e4m3(largest_of<T>(block) / 6 / whole) : 0;
        scaled(block, own * whole, rounded_to_e2m1);
      });
    }
    case NumberFormat::tq2:
    case NumberFormat::tq3:
    case NumberFormat::tq4:
      return turned_levels(numbers, facts.bits);
    case NumberFormat::exact:
    case NumberFormat::int2:
    case NumberFormat::int3:
    case NumberFormat::int4:
    case NumberFormat::int5:
    case NumberFormat::int6:
    case NumberFormat::int8:
      return;
  }
}

template void read_back(NumberFormat, std::span<float>, double, double);
template void read_back(NumberFormat, std::span<double>, double, double);
template void turn(std::span<float>, Index);
template void turn(std::span<double>, Index);

}  // namespace kvreplay
