#include "viewer/model/value_scale.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

using namespace kvreplay::viewer;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr ScaleKind kKinds[] = {ScaleKind::linear, ScaleKind::log, ScaleKind::symlog};

/// The definition in float64.
double exact_place(const ValueScale& scale, double v) {
  const double low = scale.low, high = scale.high;
  if (scale.kind == ScaleKind::linear) return (v - low) / (high - low);
  if (scale.kind == ScaleKind::log) return std::log(v / low) / std::log(high / low);
  const auto s = [&](double x) { return std::copysign(std::log1p(std::abs(x) / scale.threshold), x); };
  return (s(v) - s(low)) / (s(high) - s(low));
}

}  // namespace

TEST_CASE("places of values are the definition's", "[viewer][value_scale]") {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> share(0, 1);
  const ValueScale scales[] = {{ScaleKind::linear, -3, 5, 1},      {ScaleKind::linear, 1e-9F, 2e-9F, 1},
                               {ScaleKind::log, 1e-12F, 1, 1},     {ScaleKind::log, 3, 4, 1},
                               {ScaleKind::log, 1e-14F, 1e14F, 1}, {ScaleKind::symlog, -8, 8, 0.008F},
                               {ScaleKind::symlog, -1, 1000, 1},   {ScaleKind::symlog, 2, 9, 0.1F}};
  for (const ValueScale& scale : scales)
    for (int trial = 0; trial < 200; ++trial) {
      const float v = scale.value_at(1.5F * share(random) - 0.25F);
      INFO(name_of(scale.kind) << " " << scale.low << " to " << scale.high << " at " << v);
      CHECK(scale.place(v) == Approx(exact_place(scale, v)).margin(2e-5));
    }
}

TEST_CASE("the value at a place is found there again", "[viewer][value_scale]") {
  const ValueScale scales[] = {{ScaleKind::linear, -3, 5, 1},   {ScaleKind::log, 1e-12F, 1, 1},
                               {ScaleKind::log, 3, 4, 1},       {ScaleKind::symlog, -8, 8, 0.008F},
                               {ScaleKind::symlog, 0, 1000, 1}, {ScaleKind::symlog, -9, -2, 0.1F}};
  for (const ValueScale& scale : scales) {
    for (float t = 0; t <= 1; t += 1.0F / 64) CHECK(scale.place(scale.value_at(t)) == Approx(t).margin(2e-5));
    CHECK(scale.value_at(0) == scale.low);
    CHECK(scale.value_at(1) == scale.high);
    CHECK(scale.place(scale.low) == 0);
    CHECK(scale.place(scale.high) == 1);
  }
  CHECK((ValueScale{ScaleKind::log, 1e-4F, 1, 1}.value_at(0.5F)) == Approx(1e-2F));
  CHECK((ValueScale{ScaleKind::log, 1e-4F, 1, 1}.place(1e-3F)) == Approx(0.25F));
  CHECK((ValueScale{ScaleKind::symlog, -99, 99, 1}.place(9)) == Approx(0.75F));
  CHECK((ValueScale{ScaleKind::symlog, -99, 99, 1}.place(0)) == Approx(0.5F));
  CHECK((ValueScale{ScaleKind::linear, -1, 3, 1}.place(0)) == 0.25F);
}

TEST_CASE("what lies beyond a range says so", "[viewer][value_scale]") {
  for (const ScaleKind kind : kKinds) {
    const ValueScale scale = usable({kind, 1, 100, 1});
    CHECK(std::isnan(scale.place(kNaN)));
    CHECK(scale.place(kInfinity) == kInfinity);
    CHECK(scale.place(-kInfinity) == -kInfinity);
    CHECK(scale.place(0.5F) < 0);
    CHECK(scale.place(-3) < 0);
    CHECK(scale.place(101) > 1);
    CHECK(scale.below(std::nextafter(1.0F, 0.0F)));
    CHECK_FALSE(scale.below(1));
    CHECK_FALSE(scale.above(100));
    CHECK(scale.above(kInfinity));
    CHECK_FALSE(scale.above(kNaN));
    CHECK_FALSE(scale.below(kNaN));
  }
  CHECK((ValueScale{ScaleKind::log, 1, 10, 1}.place(0)) == -kInfinity);
}

TEST_CASE("whatever is asked for becomes a scale that can be drawn", "[viewer][value_scale]") {
  const float ends[] = {
      kNaN,    kInfinity, -kInfinity, 0.0F,      -0.0F,      1.0F,   std::nextafter(1.0F, 2.0F),
      -5.0F,   kMost,     -kMost,     kDenormal, -kDenormal, 1e-38F, 1e-20F,
      1000.0F, 1000.01F,  -1000.01F};
  const float thresholds[] = {kNaN, kInfinity, 0.0F, -1.0F, kDenormal, 1.0F, 1e-20F, 1e30F};
  for (const ScaleKind kind : kKinds)
    for (const float low : ends)
      for (const float high : ends)
        for (const float threshold : thresholds) {
          const ValueScale scale = usable({kind, low, high, threshold});
          INFO(name_of(kind) << " " << low << " to " << high << ", threshold " << threshold);
          const bool drawable =
              std::isfinite(scale.low) && std::isfinite(scale.high) && scale.low < scale.high &&
              std::isfinite(scale.high - scale.low) && (kind != ScaleKind::log || scale.low > 0) &&
              (kind != ScaleKind::symlog || (scale.threshold > 0 && std::isfinite(scale.threshold)));
          REQUIRE(drawable);
          REQUIRE(scale.place(scale.low) == 0);
          REQUIRE(scale.place(scale.high) == 1);
          const float middle = scale.place(scale.value_at(0.5F));
          // Ends may be neighbouring floats: then the middle is one of them.
          const bool narrow = std::nextafter(std::nextafter(scale.low, scale.high), scale.high) >= scale.high;
          REQUIRE((narrow || (middle > 0.3F && middle < 0.7F)));
          REQUIRE(usable(scale) == scale);
        }
}

TEST_CASE("ranges are mended as promised and good ones kept", "[viewer][value_scale]") {
  const auto mended = [](ScaleKind kind, float low, float high) {
    const ValueScale scale = usable({kind, low, high, 1});
    return std::pair{scale.low, scale.high};
  };
  CHECK(mended(ScaleKind::linear, 0, 0) == std::pair{0.0F, 1.0F});
  CHECK(mended(ScaleKind::linear, 4, 4) == std::pair{2.0F, 6.0F});
  CHECK(mended(ScaleKind::linear, -4, -4) == std::pair{-6.0F, -2.0F});
  CHECK(mended(ScaleKind::linear, 3, -2) == std::pair{-2.0F, 3.0F});
  CHECK(mended(ScaleKind::linear, kNaN, kNaN) == std::pair{0.0F, 1.0F});
  CHECK(mended(ScaleKind::linear, kNaN, 4) == std::pair{2.0F, 6.0F});
  CHECK(mended(ScaleKind::log, 0, 2).first == Approx(2e-6F));
  CHECK(mended(ScaleKind::log, -7, 2).first == Approx(2e-6F));
  CHECK(mended(ScaleKind::log, -7, -2).second == 1);
  for (const ScaleKind kind : kKinds) {
    CHECK(mended(kind, 0.001F, 7.5F) == std::pair{0.001F, 7.5F});
    CHECK(usable({kind, 2, 3, 1}) == ValueScale{kind, 2, 3, 1});
  }
  CHECK(usable({ScaleKind::symlog, -2, 5, 0}).threshold == Approx(0.005F));
}

TEST_CASE("ticks are round, ascending, in range and no more than asked", "[viewer][value_scale]") {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> exponent(-30, 30), share(-1, 1);
  for (int trial = 0; trial < 3000; ++trial) {
    const ScaleKind kind = kKinds[trial % 3];
    const float size = std::pow(10.0F, exponent(random));
    const ValueScale scale = usable({kind, size * share(random), size * share(random), size * 1e-3F});
    for (const int most : {1, 2, 5, 9, 30}) {
      const std::vector<double> ticks = scale_ticks(scale, most);
      INFO(name_of(kind) << " " << scale.low << " to " << scale.high << ", most " << most);
      REQUIRE(static_cast<int>(ticks.size()) <= most);
      REQUIRE(!ticks.empty());
      REQUIRE(std::is_sorted(ticks.begin(), ticks.end()));
      REQUIRE(std::adjacent_find(ticks.begin(), ticks.end()) == ticks.end());
      REQUIRE(static_cast<float>(ticks.front()) >= scale.low);
      REQUIRE(static_cast<float>(ticks.back()) <= scale.high);
    }
  }
  using Ticks = std::vector<double>;
  const auto equal = [](const Ticks& found, const Ticks& expected) {
    bool same = found.size() == expected.size();
    for (std::size_t i = 0; same && i < found.size(); ++i)
      same = std::abs(found[i] - expected[i]) <= 1e-12 * std::abs(expected[i]);
    return same;
  };
  CHECK(equal(scale_ticks({ScaleKind::linear, 0, 1, 1}, 6), {0, 0.2, 0.4, 0.6, 0.8, 1}));
  CHECK(equal(scale_ticks({ScaleKind::linear, -3, 5, 1}, 5), {-2, 0, 2, 4}));
  CHECK(equal(scale_ticks({ScaleKind::log, 1e-4F, 1.5F, 1}, 6), {1e-4, 1e-3, 1e-2, 1e-1, 1}));
  CHECK(equal(scale_ticks({ScaleKind::log, 0.9F, 60, 1}, 6), {1, 2, 5, 10, 20, 50}));
  CHECK(equal(scale_ticks({ScaleKind::symlog, -150, 150, 1}, 7), {-100, -10, -1, 0, 1, 10, 100}));
  CHECK(equal(scale_ticks({ScaleKind::symlog, -150, 150, 1}, 3), {-100, 0, 100}));
  CHECK(scale_ticks({ScaleKind::linear, 0, 1, 1}, 0).empty());
}
