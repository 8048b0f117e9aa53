#include "sim/cache/number_format.hpp"

#include "sim/cache/quantize.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

using namespace kvreplay;

namespace {

template <class T = float>
std::vector<T> read(NumberFormat format, std::vector<T> numbers, double largest = 0) {
  read_back<T>(format, numbers, largest);
  return numbers;
}

/// Every finite float of `exponent` and `mantissa` bits, by its bits: sign, exponent with this bias,
/// mantissa.
std::vector<double> all_floats(int exponent, int mantissa, int bias, double most) {
  std::vector<double> all;
  for (int e = 0; e < 1 << exponent; ++e)
    for (int m = 0; m < 1 << mantissa; ++m) {
      const double fraction = static_cast<double>(m) / (1 << mantissa);
      const double x = e == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, e - bias);
      if (x <= most) all.insert(all.end(), {x, -x});
    }
  std::ranges::sort(all);
  return all;
}

std::vector<float> normal_numbers(std::size_t n, std::uint64_t seed, float size = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return sum;
}

}  // namespace

TEST_CASE("small floats are the nearest of all there are", "[number_format]") {
  struct Kind {
    std::vector<double> all;
    double (*round)(double);
  };
  for (const Kind& kind :
       {Kind{all_floats(4, 3, 7, 448), rounded_to_e4m3}, Kind{all_floats(2, 1, 1, 6), rounded_to_e2m1}}) {
    std::mt19937 random(3);
    for (const double x : kind.all) CHECK(kind.round(x) == x);
    std::uniform_real_distribution<double> exponent(-12, std::log2(kind.all.back()));
    for (int trial = 0; trial < 20000; ++trial) {
      const double x = (trial % 2 != 0 ? -1 : 1) * std::exp2(exponent(random));
      const auto nearest = *std::ranges::min_element(kind.all, {}, [&](double y) { return std::abs(y - x); });
      CHECK(std::abs(kind.round(x) - x) == std::abs(nearest - x));
    }
    // Half way: the one whose last bit is 0, which is every other one.
    const auto zero = std::ranges::find(kind.all, 0.0);
    for (auto at = zero; at + 1 != kind.all.end(); ++at) {
      if (at[0] == at[1]) continue;
      const bool even = ((at - zero) / 1) % 2 == 1;  // both zeros stand there
      CHECK(kind.round((at[0] + at[1]) / 2) == (even ? at[0] : at[1]));
    }
    CHECK(kind.round(1e30) == kind.all.back());
    CHECK(kind.round(-1e30) == kind.all.front());
  }
  CHECK(rounded_to_fp16(65519) == 65504);
  CHECK(rounded_to_fp16(std::ldexp(1.0, -25)) == 0);
  CHECK(rounded_to_fp16(1 + std::ldexp(3.0, -11)) == 1 + std::ldexp(2.0, -10));
}

TEST_CASE("llama.cpp's blocks by hand", "[number_format]") {
  std::vector<float> block(32, 0.0F);
  block[0] = -8, block[1] = 7.4F, block[2] = 3.5F, block[3] = -0.5F, block[4] = 0.49F;
  // The largest is -8: step 1, codes x + 8.5 rounded down.
  const std::vector<float> q4 = read(NumberFormat::q4_0, block);
  CHECK(std::vector<float>(q4.begin(), q4.begin() + 6) == std::vector<float>{-8, 7, 4, 0, 0, 0});
  block[0] = 8;  // step -1: 8 is code 0, and -8 would need code 16
  block[1] = -7.6F;
  const std::vector<float> flipped = read(NumberFormat::q4_0, block);
  CHECK(flipped[0] == 8);
  CHECK(flipped[1] == -7);
  const std::vector<float> q5 = read(NumberFormat::q5_0, block);
  CHECK(q5[0] == 8);
  CHECK(q5[1] == -7.5F);
  std::iota(block.begin(), block.end(), 10.0F);  // 10 .. 41: 31 steps of 1
  CHECK(read(NumberFormat::q5_1, block) == block);
  const std::vector<float> q4_1 = read(NumberFormat::q4_1, block);  // steps of 31 / 15, in 16 bits 2.06640625
  CHECK(q4_1[0] == 10);
  CHECK(q4_1[1] == 10);
  CHECK(q4_1[2] == 10 + 2.06640625F);
  CHECK(q4_1[31] == 10 + 15 * 2.06640625F);
  block[31] = 127;
  std::fill(block.begin(), block.end() - 1, 2.5F);  // a step of 1: halves away from 0
  CHECK(read(NumberFormat::q8_0, block).front() == 3);
  for (const NumberFormat format : kNumberFormats.all())
    if (!kNumberFormats[format].uniform)
      CHECK(read(format, std::vector<float>(64, 0.0F)) == std::vector<float>(64, 0.0F));
}

TEST_CASE("scaled floats by hand", "[number_format]") {
  std::vector<double> block(32, 0.0);
  block[0] = 5, block[1] = 0.3, block[2] = -2.4;
  // 5 = 1.25 * 4: 4 is what the largest element, 6 = 1.5 * 4, is divided down to; the scale is 1.
  const std::vector<double> mx = read(NumberFormat::mxfp4, block);
  CHECK(mx[0] == 4);  // half way between 4 and 6, even
  CHECK(mx[1] == 0.5);
  CHECK(mx[2] == -2);
  block[0] = 7.9;  // beyond 6: it saturates
  CHECK(read(NumberFormat::mxfp4, block)[0] == 6);
  block[0] = 6;
  const std::vector<double> nv =
      read(NumberFormat::nvfp4, std::vector<double>(block.begin(), block.begin() + 16), 6 * 448);
  CHECK(nv[0] == 6);  // the block's scale is 1, the head's 1
  CHECK(nv[1] == 0.5);
  CHECK(nv[2] == -2);
  CHECK(read<double>(NumberFormat::fp8, {449, 17, -0.001})[0] == 448);
  CHECK(read<double>(NumberFormat::fp8, {449, 17, -0.001})[1] == 16);
  CHECK(read<double>(NumberFormat::fp8, {449, 17, -0.001})[2] == -std::ldexp(1.0, -9));
  CHECK(read<double>(NumberFormat::fp8_per_token_head, {896, 34, 0})[1] == 32 + 0.0);
  CHECK(read<double>(NumberFormat::int8_per_token_head, {254, 5.1, -3})[1] == 6);
  CHECK(read<double>(NumberFormat::int8_per_token_head, {254, 5.1, -3})[2] == -4);
}

TEST_CASE("a layer's scale moves the range of fp8 and int8", "[number_format]") {
  const auto over = [](NumberFormat format, std::vector<double> numbers, double scale) {
    read_back<double>(format, numbers, 0, scale);
    return numbers;
  };
  const std::vector<double> numbers{900, -5, 1.3, 0};
  CHECK(over(NumberFormat::int8_per_tensor, numbers, 1) == std::vector<double>{127, -5, 1, 0});
  CHECK(over(NumberFormat::int8_per_tensor, numbers, 10) == std::vector<double>{900, 0, 0, 0});
  CHECK(over(NumberFormat::int8_per_tensor, {-900, 900}, 1) == std::vector<double>{-128, 127});
  CHECK(over(NumberFormat::fp8, numbers, 1) == std::vector<double>{448, -5, 1.25, 0});
  CHECK(over(NumberFormat::fp8, numbers, 2) == std::vector<double>{896, -5, 1.25, 0});  // a power of two
  CHECK(over(NumberFormat::fp8, {-900, 900}, 0.5) == std::vector<double>{-224, 224});
  CHECK(over(NumberFormat::fp8, {3}, 3)[0] == 3);
  for (const NumberFormat format : kNumberFormats.all()) {
    const NumberFormatFacts& facts = kNumberFormats[format];
    if (facts.uniform) continue;
    INFO(facts.name);
    const std::vector<float> block = normal_numbers(64, 5);
    std::vector<float> scaled = block;
    read_back<float>(format, scaled, 10, 0.3);
    CHECK((scaled != read(format, block, 10)) == facts.tensor_scale);
  }
}

TEST_CASE("levels are Lloyd and Max's", "[number_format]") {
  // Max, Quantizing for minimum distortion (1960), table I: the positive levels, and the mean squared error.
  const std::vector<std::pair<std::vector<double>, double>> table = {
      {{0.7980}, 0.3634},
      {{0.4528, 1.510}, 0.1175},
      {{0.2451, 0.7560, 1.344, 2.152}, 0.03454},
      {{0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}, 0.009497}};
  for (int bits = 1; bits <= 4; ++bits) {
    const auto levels = gaussian_levels(bits);
    const auto& [positive, error] = table[static_cast<std::size_t>(bits - 1)];
    REQUIRE(levels.size() == 2 * positive.size());
    for (std::size_t i = 0; i < positive.size(); ++i) {
      CHECK(levels[positive.size() + i] == Approx(positive[i]).margin(6e-4));
      CHECK(levels[positive.size() - 1 - i] == Approx(-positive[i]).margin(6e-4));
    }
    double sum = 0;
    std::mt19937_64 random(11);
    std::normal_distribution<double> normal;
    constexpr int kTrials = 200000;
    for (int trial = 0; trial < kTrials; ++trial) {
      const double x = normal(random);
      double least = 1e9;
      for (const double level : levels) least = std::min(least, (x - level) * (x - level));
      sum += least;
    }
    CHECK(sum / kTrials == Approx(error).epsilon(0.02));
  }
}

TEST_CASE("a Hadamard matrix keeps lengths and undoes itself", "[number_format]") {
  for (const Index block : {2, 16, 64}) {
    const std::vector<float> numbers = normal_numbers(64, 4);
    std::vector<double> turned(numbers.begin(), numbers.end());
    turn<double>(turned, block);
    double before = 0, after = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      before += static_cast<double>(numbers[i]) * numbers[i];
      after += turned[i] * turned[i];
    }
    CHECK(after == Approx(before));
    turn<double>(turned, block);
    for (std::size_t i = 0; i < 64; ++i) CHECK(turned[i] == Approx(numbers[i]).margin(1e-12));
  }
  std::vector<double> one(8, 0.0);
  one[3] = 1;  // a column of Sylvester's matrix: the parity of i & 3
  turn<double>(one, 8);
  for (std::size_t i = 0; i < 8; ++i) {
    const bool odd = ((i & 1) ^ ((i >> 1) & 1)) != 0;
    CHECK(one[i] == Approx((odd ? -1 : 1) / std::sqrt(8.0)));
  }
  CHECK(turning_block(96) == 32);
  CHECK(turning_block(13) == 1);
}

TEST_CASE("errors are what the bits of a format promise", "[number_format]") {
  const auto share = [&](NumberFormat format) {
    double error = 0, whole = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const std::vector<float> numbers = normal_numbers(128, seed, 3);
      const double largest =
          std::abs(*std::ranges::max_element(numbers, {}, [](float x) { return std::abs(x); }));
      error += squared_error(numbers, read(format, numbers, largest));
      whole += squared_error(numbers, std::vector<float>(128, 0.0F));
    }
    return error / whole;
  };
  // The distortion of a direction in 2^b levels is that of a normal number (TurboQuant, theorem 1), to 128
  // samples.
  CHECK(share(NumberFormat::tq2) == Approx(0.1175).epsilon(0.06));
  CHECK(share(NumberFormat::tq3) == Approx(0.0345).epsilon(0.06));
  CHECK(share(NumberFormat::tq4) == Approx(0.0095).epsilon(0.06));
  CHECK(share(NumberFormat::q8_0) < 1e-4);
  CHECK(share(NumberFormat::int8_per_token_head) < 2e-4);
  CHECK(share(NumberFormat::fp8) < 1e-3);
  CHECK(share(NumberFormat::mxfp8) < 2e-3);
  CHECK(share(NumberFormat::q5_1) < share(NumberFormat::q4_1));
  CHECK(share(NumberFormat::q5_0) < share(NumberFormat::q4_0));
  CHECK(share(NumberFormat::nvfp4) < share(NumberFormat::mxfp4));
  CHECK(share(NumberFormat::q4_0) < 0.02);
}

TEST_CASE("turned tokens come back, and the residual is not touched", "[quantize]") {
  const Index n = 40, d = 32;
  Matrix<double> k(n, d);
  const std::vector<float> numbers = normal_numbers(n * d, 2);
  std::copy(numbers.begin(), numbers.end(), k.data());
  std::vector<Index> tokens(n);
  std::iota(tokens.begin(), tokens.end(), Index{0});
  for (const NumberFormat format : {NumberFormat::int8, NumberFormat::q8_0, NumberFormat::mxfp8}) {
    Matrix<double> turned = k;
    const Quantization stored{{format, false, 32}, {}, 32, 10};
    CHECK(quantized_keys(n, stored) == 30);
    CHECK(quantized_values(n, stored) == 0);
    quantize_keys(turned, tokens, {}, {}, stored);
    CHECK(turned.bottomRows(10) == k.bottomRows(10));
    CHECK((turned - k).topRows(30).norm() < 0.04 * k.topRows(30).norm());
    CHECK(turned.topRows(30) != k.topRows(30));
    quantize_values(turned, tokens, stored);
    CHECK((turned - k).topRows(30).norm() < 0.04 * k.topRows(30).norm());
  }
  // By the definition: what is stored is the product with the matrix.
  Matrix<double> by_hand = k, found = k;
  const Quantization stored{{NumberFormat::int4, true, 8}, {}, 8, 0};
  for (Index p = 0; p < n; ++p) turn(std::span<double>(by_hand.row(p).data(), d), 8);
  quantize_keys(by_hand, tokens, {}, {}, {{NumberFormat::int4, true}, {}, 8, 0});
  for (Index p = 0; p < n; ++p) turn(std::span<double>(by_hand.row(p).data(), d), 8);
  quantize_keys(found, tokens, {}, {}, stored);
  CHECK(found == by_hand);
}
