#include "analysis/conform/rounding.hpp"
#include "sim/attention.hpp"
#include "sim/compute.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

// Tolerances of `conform`: scores computed in coarse numbers lie within them, but not far within.

using namespace kvreplay;
using namespace kvreplay::conform;
using kvreplay::test::GroupSpec;
using kvreplay::test::random_group;

namespace {

double rounded(double x, Dtype numbers) {
  const auto single = static_cast<float>(x);
  return numbers == Dtype::f16 ? static_cast<double>(static_cast<float>(Eigen::half(single)))
                               : static_cast<double>(static_cast<float>(Eigen::bfloat16(single)));
}

/// [l]: reference sums of a^power over the last `window` rows. Queries, keys, logits and weights are rounded
/// to `numbers` if set.
Vector<double> summed(HeadGroup<double> group, Index window, int power, std::optional<Dtype> numbers) {
  const auto to = [&](double x) { return numbers ? rounded(x, *numbers) : x; };
  Vector<double> sums = Vector<double>::Zero(group.l);
  for (HeadMatrix<double>& q : group.q) q = Matrix<double>(q.unaryExpr(to));
  group.k = Matrix<double>(group.k.unaryExpr(to));
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = group.l - window; i < group.l; ++i) {
      const Vector<double> z = attention_logits(group, g, i).z.unaryExpr([&](double x) {
        return std::isfinite(x) ? to(x) : x;
      }),
                           a = attention_weights(group, g, z).unaryExpr(to);
      for (Index p = 0; p < group.l; ++p) sums[p] += std::pow(a[p], power);
    }
  return sums.unaryExpr(to);
}

}  // namespace

TEST_CASE("scores in 16 bits lie within their tolerance, and not far within", "[conform]") {
  Workers workers(1);
  GroupSpec plain{.l = 150, .T = 156, .G = 2, .d = 16}, steep = plain, windowed = plain, capped = plain;
  steep.logit_std = 6;
  windowed.sliding_window = 40;
  capped.softcap = 3;
  capped.sink_logit = 1;
  for (const GroupSpec& spec : {plain, steep, windowed, capped})
    for (const Index window : {Index{1}, Index{32}, Index{150}})
      for (const TokenMetric metric : {TokenMetric::attn, TokenMetric::attn_sq}) {
        const HeadGroup<double> group = random_group(spec);
        EvictionRule rule;
        rule.metric = metric;
        rule.window = window;
        const int power = attention_power(rule);
        REQUIRE(power == (metric == TokenMetric::attn ? 1 : 2));
        const Vector<double> deviation = attention_deviation(group, window, power, workers),
                             exact = summed(group, window, power, {});
        for (const Dtype numbers : {Dtype::f16, Dtype::bf16}) {
          const Vector<double> near = score_tolerance(group, rule, exact, deviation, 0, numbers),
                               off = (summed(group, window, power, numbers) - exact).cwiseAbs();
          double most = 0;
          for (Index p = 0; p < group.l; ++p)
            if (off[p] > 0) most = std::max(most, off[p] / near[p]);
          INFO(fmt::format("logits {} window {} power {} numbers {}: {}", spec.logit_std, window, power,
                           name_of(numbers), most));
          CHECK(most < 1);
          CHECK(most > 0.1);
        }
      }
}

TEST_CASE("tolerances are those of the numbers and of the token", "[conform]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 60, .T = 62, .G = 3});
  EvictionRule rule;
  rule.metric = TokenMetric::attn;
  rule.window = 20;
  const Vector<double> deviation = attention_deviation(group, 20, 1, workers),
                       scores = summed(group, 20, 1, {}),
                       fine = score_tolerance(group, rule, scores, deviation, 0, Dtype::f32),
                       coarse = score_tolerance(group, rule, scores, deviation, 0, Dtype::bf16);
  for (Index p = 0; p < group.l; ++p) CHECK(coarse[p] == Approx(4096 * fine[p]));
  CHECK(deviation.minCoeff() > 0);
  CHECK(deviation.maxCoeff() > 1.5 * deviation.minCoeff());
  rule.metric = TokenMetric::value;
  CHECK(attention_power(rule) == 2);
  for (const TokenMetric other :
       {TokenMetric::knorm, TokenMetric::keydiff, TokenMetric::lagkv, TokenMetric::expected_attention,
        TokenMetric::rkv, TokenMetric::defensive}) {
    rule.metric = other;
    CHECK(attention_power(rule) == 0);
  }
}
