#include "sim/simd/matrix_unit.hpp"

#include "data/error.hpp"
#include "data/npy/half.hpp"
#include "sim/backend_matrix.hpp"
#include "sim/simd/amx.hpp"
#include "sim/simd/bf16_dots.hpp"
#include "sim/tokens/tiles.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/emulated_matrix_unit.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// The emulated one, and the processor's own where it has some.
std::vector<const MatrixUnit*> units() {
  std::vector<const MatrixUnit*> all = {&emulated_matrix_unit()};
  for (const MatrixUnit* own : {amx_unit(), bf16_dots_unit()})
    if (own != nullptr) all.push_back(own);
  if (all.size() == 1) WARN("emulated only: " << why_no_matrix_unit());
  return all;
}

void round_to_bf16(HeadMatrix<float>& x) {
  Matrix<float> rounded = x;
  for (float& number : rounded.reshaped()) number = bfloat_to_float(float_to_bfloat(number));
  x = rounded;
}

/// A group whose logits bfloat16 holds to the last bit.
HeadGroup<float> exact_group(const TokenCase& of) {
  HeadGroup<float> group = to_float(of.group());
  group.rule.scale = 0.25;
  round_to_bf16(group.k);
  for (HeadMatrix<float>& q : group.q) round_to_bf16(q);
  return group;
}

/// bfloat16's rounding of values, weights and outputs: 2^-9 each, of sums over many.
constexpr Tolerance kTwoDigits{1e-2, 2e-2, 1e-3, 1e-30};

std::string missed(const TokenCase& c, TokenMetric metric, const TokenMetrics& want, const TokenMetrics& got,
                   const Tolerance& tolerance) {
  if (want[metric].size() == 0) return "";
  return mismatch(c.name + ", " + std::string(name_of(metric)), want[metric], got[metric], tolerance);
}

}  // namespace

TEST_CASE("a float rounds to the nearest bfloat16, of two the even one", "[matrix_unit]") {
  CHECK(bfloat_to_float(float_to_bfloat(1.0F)) == 1.0F);
  CHECK(bfloat_to_float(float_to_bfloat(-3.140625F)) == -3.140625F);
  CHECK(bfloat_to_float(float_to_bfloat(1.0F + 0x1p-8F)) == 1.0F);  // a tie: the even one is below
  CHECK(bfloat_to_float(float_to_bfloat(1.0F + 3 * 0x1p-8F)) == 1.0F + 4 * 0x1p-8F);  // and here above
  CHECK(bfloat_to_float(float_to_bfloat(1.0F + 0x1.2p-8F)) == 1.0F + 0x1p-7F);
  CHECK(bfloat_to_float(float_to_bfloat(0.0F)) == 0.0F);
  CHECK(std::isinf(bfloat_to_float(float_to_bfloat(-std::numeric_limits<float>::infinity()))));
  for (const std::uint32_t nan : {0x7fc00000U, 0x7fffffffU, 0xffffffffU, 0x7f800001U})
    CHECK(std::isnan(bfloat_to_float(float_to_bfloat(std::bit_cast<float>(nan)))));
}

TEST_CASE("what is packed for a matrix unit is every number's bfloat16, in its place, and zeros around it",
          "[matrix_unit]") {
  const TilesSimd<float> simd = tiles_simd<float>();
  std::mt19937 bits(8);
  for (const Index rows : {1, 15, 16, 31, 32, 45})
    for (const Index columns : {1, 16, 33, 64}) {
      Matrix<float> x(rows, columns);
      for (float& number : x.reshaped()) number = std::bit_cast<float>(static_cast<std::uint32_t>(bits()));
      x(rows / 2, columns / 2) = std::bit_cast<float>(0xffffffffU);  // not a number
      x(0, 0) = 1.0F + 3 * 0x1p-8F;                                  // a tie
      const Index row_tiles = div_up(rows, kTileRows), depth_tiles = div_up(columns, kTileDepth);
      const Index depths = div_up(rows, kTileDepth), across_tiles = div_up(columns, kTileRows);
      const Tiles left = new_tiles(row_tiles * depth_tiles), across = new_tiles(depths * across_tiles);
      simd.pack_left(x.data(), rows, columns, left.get());
      simd.pack_left_transposed(x.data(), rows, columns, across.get());
      const auto want = [&](Index r, Index c) {
        return r < rows && c < columns ? float_to_bfloat(x(r, c)) : Bf16{0};
      };
      Index wrong = 0;
      for (Index r = 0; r < row_tiles * kTileRows; ++r)
        for (Index c = 0; c < depth_tiles * kTileDepth; ++c)
          wrong += left[(r / kTileRows * depth_tiles + c / kTileDepth) * kTileNumbers +
                        r % kTileRows * kTileDepth + c % kTileDepth] != want(r, c);
      for (Index r = 0; r < depths * kTileDepth; ++r)
        for (Index c = 0; c < across_tiles * kTileRows; ++c)
          wrong += across[(r / kTileDepth * across_tiles + c / kTileRows) * kTileNumbers +
                          c % kTileRows * kTileDepth + r % kTileDepth] != want(r, c);
      INFO(rows << " x " << columns);
      CHECK(wrong == 0);
    }
}

TEST_CASE("a matrix unit multiplies what was packed for it", "[matrix_unit]") {
  constexpr Index W = kPanelWidth<float>;
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  for (const MatrixUnit* unit : units())
    for (const Index rows : {1, 16, 17, 40})
      for (const Index depth : {1, 31, 32, 33, 128})
        for (const bool transposed : {false, true}) {
          Matrix<float> a(rows, depth), b(depth, W);
          for (Matrix<float>* x : {&a, &b})
            for (float& number : x->reshaped()) number = bfloat_to_float(float_to_bfloat(normal(engine)));
          const Index row_tiles = div_up(rows, kTileRows), depth_tiles = div_up(depth, kTileDepth);
          const Tiles left = new_tiles(row_tiles * depth_tiles), right = new_tiles(right_tiles(depth));
          const Matrix<float> across = a.transpose();
          if (transposed)
            tiles_simd<float>().pack_left_transposed(across.data(), depth, rows, left.get());
          else
            tiles_simd<float>().pack_left(a.data(), rows, depth, left.get());
          tiles_simd<float>().pack_right(b.data(), depth, right.get());
          Matrix<float> c = Matrix<float>::Constant(row_tiles * kTileRows, W, 7);
          const LeftTiles tiles =
              transposed ? LeftTiles{left.get(), 1, row_tiles} : LeftTiles{left.get(), depth_tiles, 1};
          unit->product(tiles, row_tiles, depth_tiles, right.get(), c.data());
          Matrix<double> want = Matrix<double>::Zero(c.rows(), W);
          want.topRows(rows) = a.cast<double>() * b.cast<double>();
          INFO(rows << " x " << depth << (transposed ? ", transposed" : ""));
          CHECK(mismatch("product", want, c.cast<double>(), {1e-6, 1e-3, 1e-3}) == "");
        }
}

TEST_CASE(
    "by a matrix unit weights of exact logits are float32's own, and losses; all else of attention is good "
    "to two digits",
    "[matrix_unit]") {
  Workers workers(2);
  for (const MatrixUnit* unit : units()) {
    const MatrixBackend backend(*unit);
    for (const auto* cases : {&small_token_cases(), &large_token_cases()})
      for (const TokenCase& c : *cases) {
        const HeadGroup<float> group = exact_group(c);
        const TokenMetrics want = token_metrics_reference(to_double(group), c.options),
                           got = backend.token_metrics(group, c.options, workers);
        for (const TokenMetric metric : {TokenMetric::attn, TokenMetric::attn_sq, TokenMetric::exact_loss,
                                         TokenMetric::oracle_loss, TokenMetric::knorm})
          CHECK(missed(c, metric, want, got, kSingle) == "");
        if (cases == &small_token_cases()) continue;
        for (const TokenMetric metric : {TokenMetric::key, TokenMetric::joint, TokenMetric::exact_remove,
                                         TokenMetric::exact_key, TokenMetric::exact_joint})
          CHECK(missed(c, metric, want, got, kTwoDigits) == "");
      }
  }
}

TEST_CASE("a key that is not a number is not lost on the way to a matrix unit", "[matrix_unit]") {
  Workers workers(1);
  for (const MatrixUnit* unit : units()) {
    HeadGroup<float> group = to_float(random_group({}));
    Matrix<float> keys = group.k;
    keys(3, 2) = std::bit_cast<float>(0xffffffffU);
    group.k = keys;
    CHECK_THROWS_AS(MatrixBackend(*unit).token_metrics(group, {}, workers), InputError);
  }
}

TEST_CASE("weights alone, and a window that begins anywhere, take whole tiles of a matrix unit",
          "[matrix_unit]") {
  Workers workers(2);
  for (const MatrixUnit* unit : units()) {
    const MatrixBackend backend(*unit);
    for (const Index window : {1, 5, 40, 300})
      for (const Index sliding : {0, 37, 300}) {
        TokenCase c{"l 700, window " + std::to_string(window) + ", sliding " + std::to_string(sliding),
                    {.l = 700, .T = 731, .d = 20, .d_v = 24},
                    {.window = window}};
        if (sliding > 0) c.spec.sliding_window = sliding;
        const HeadGroup<float> group = exact_group(c);
        for (const MetricSet& metrics : {MetricSet{TokenMetric::attn}, MetricSet{TokenMetric::exact_remove},
                                         MetricSet{TokenMetric::oracle_next, TokenMetric::oracle_future}}) {
          c.options.metrics = metrics;
          const TokenMetrics want = token_metrics_reference(to_double(group), c.options),
                             got = backend.token_metrics(group, c.options, workers);
          for (const TokenMetric metric : kTokenMetrics.all())
            CHECK(missed(c, metric, want, got, metric == TokenMetric::attn ? kSingle : kTwoDigits) == "");
        }
      }
  }
}
