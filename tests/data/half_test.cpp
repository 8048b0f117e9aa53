#include "data/dtype.hpp"
#include "data/npy_array.hpp"
#include "tests/support/catch.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kvreplay {
namespace {

/// IEEE 754 by the book: sign, exponent, fraction.
double half_by_definition(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double bfloat_by_definition(std::uint16_t bits) {
  const int exponent = bits >> 7 & 255, fraction = bits & 127;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 255) return fraction ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134));
}

/// Equal in value, and zeros in sign; NaN equals NaN.
bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

TEST_CASE("every float16 pattern widens to the value its bits define", "[half]") {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  std::vector<float> floats(patterns.size());
  std::vector<double> doubles(patterns.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(patterns.data());
  convert({Dtype::f16, false}, bytes, 65536, floats.data());
  convert({Dtype::f16, false}, bytes, 65536, doubles.data());
  int wrong = 0;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const double expected = half_by_definition(patterns[i]);
    wrong += !same(half_to_float(patterns[i]), expected) || !same(floats[i], expected) ||
             !same(doubles[i], expected);
  }
  CHECK(wrong == 0);
}

TEST_CASE("every bfloat16 pattern widens to the value its bits define", "[half]") {
  int wrong = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    wrong += !same(bfloat_to_float(bits), bfloat_by_definition(bits));
  }
  CHECK(wrong == 0);
}

TEST_CASE("narrowing what was widened gives the same pattern", "[half]") {
  int wrong = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float half = half_to_float(bits), bfloat = bfloat_to_float(bits);
    wrong += std::isnan(half) ? !std::isnan(half_to_float(float_to_half(half))) : float_to_half(half) != bits;
    wrong += std::isnan(bfloat) ? !std::isnan(bfloat_to_float(float_to_bfloat(bfloat)))
                                : float_to_bfloat(bfloat) != bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("narrowing rounds to nearest, ties to even", "[half]") {
  // Between each pair of neighbours: a little below the middle, the middle, a little above.
  int wrong = 0;
  for (std::uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const float middle = 0.5f * (half_to_float(low) + half_to_float(high));
    wrong += float_to_half(std::nextafter(middle, 0.0f)) != low;
    wrong += float_to_half(middle) != (low % 2 == 0 ? low : high);
    wrong += float_to_half(std::nextafter(middle, 1e9f)) != high;
    wrong += float_to_half(-middle) != ((low % 2 == 0 ? low : high) | 0x8000);
  }
  for (std::uint16_t low = 0x80; low < 0x7f7f; ++low) {  // normal bfloat16s
    const auto high = static_cast<std::uint16_t>(low + 1);
    const float middle = std::bit_cast<float>((std::uint32_t{low} << 16) + 0x8000u);
    wrong += float_to_bfloat(std::nextafter(middle, 0.0f)) != low;
    wrong += float_to_bfloat(middle) != (low % 2 == 0 ? low : high);
    wrong += float_to_bfloat(std::nextafter(middle, HUGE_VALF)) != high;
  }
  CHECK(wrong == 0);
}

TEST_CASE("known float16 and bfloat16 values", "[half]") {
  CHECK(half_to_float(0x3c00) == 1.0f);
  CHECK(half_to_float(0xc000) == -2.0f);
  CHECK(half_to_float(0x7bff) == 65504.0f);
  CHECK(half_to_float(0x0400) == 0x1p-14f);  // smallest normal
  CHECK(half_to_float(0x03ff) == 1023 * 0x1p-24f);
  CHECK(half_to_float(0x0001) == 0x1p-24f);
  CHECK(float_to_half(65519.0f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(1e-9f) == 0x0000);
  CHECK(float_to_half(HUGE_VALF) == 0x7c00);
  CHECK(bfloat_to_float(0x3f80) == 1.0f);
  CHECK(bfloat_to_float(0x4049) == 3.140625f);
  CHECK(float_to_bfloat(3.14159274f) == 0x4049);
  CHECK(float_to_bfloat(-HUGE_VALF) == 0xff80);
}

}  // namespace kvreplay
