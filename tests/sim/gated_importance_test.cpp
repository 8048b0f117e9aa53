#include "sim/tokens/gated_importance.hpp"

#include "data/error.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// max over the decoding steps of a_ip ||(v_p * gate_i) W_O(g)||, number by number: causal, without a window,
/// a cap or a sink. [G, l].
Matrix<double> by_definition(const HeadGroup<double>& group) {
  Matrix<double> largest = Matrix<double>::Zero(group.G(), group.l);
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = std::max(group.l, group.first_query()); i < group.T_all(); ++i) {
      std::vector<double> e;
      double sum = 0;
      for (Index p = 0; p <= i; ++p) {
        double z = 0;
        for (Index c = 0; c < group.d(); ++c) z += group.q[g](i - group.first_query(), c) * group.k(p, c);
        sum += e.emplace_back(std::exp(group.rule.scale * z));
      }
      for (Index p = 0; p < group.l; ++p) {
        double square = 0;
        for (Index m = 0; m < group.wo[g].cols(); ++m) {
          double out = 0;
          for (Index c = 0; c < group.d_v(); ++c)
            out += group.v(p, c) * group.gate[g](i - std::max(group.l, group.first_query()), c) *
                   group.wo[g](c, m);
          square += out * out;
        }
        largest(g, p) = std::max(largest(g, p), e[p] / sum * std::sqrt(square));
      }
    }
  return largest;
}

constexpr Tolerance kRounded{1e-11, 1e-10, 1e-12, 0.0}, kRoundedToFloat{1e-5, 1e-4, 1e-6, 0.0};

void check_importance(const char* name, const HeadGroup<double>& exact) {
  const HeadGroup<float> group = to_float(exact);
  const HeadGroup<double> wide = to_double(group);
  const Matrix<double> by_head = by_definition(wide), summed = by_head.colwise().sum();
  Workers workers(3);
  INFO(name);
  for (const bool per_query_head : {false, true}) {
    const Matrix<double>& want = per_query_head ? by_head : summed;
    const TokenOptions options{8, per_query_head, {TokenMetric::oracle_importance}};
    const auto found = [](const TokenMetrics& metrics) { return metrics[TokenMetric::oracle_importance]; };
    CHECK(mismatch("reference", want, found(token_metrics_reference(wide, options)), kRounded) == "");
    CHECK(mismatch("float64", want, found(token_metrics_cpu(wide, options, workers)), kRounded) == "");
    CHECK(mismatch("float32", want, found(token_metrics_cpu(group, options, workers)), kRoundedToFloat) ==
          "");
  }
}

}  // namespace

TEST_CASE("oracle_importance with a gate, by hand", "[gated_importance]") {
  // Keys of 0: each of the first query's 3 and of the second's 4 tokens has the same weight.
  HeadGroup<double> group;
  group.l = 2;
  group.rule.scale = 1;
  group.q = {Matrix<double>::Ones(4, 1)};
  group.k = Matrix<double>::Zero(4, 1);
  group.v = Matrix<double>::Zero(4, 2);
  group.v.row(0) << 3, 1;
  group.v.row(1) << 0, 2;
  group.wo = {Matrix<double>::Zero(2, 2)};
  group.wo[0] << 1, 1, 0, 2;
  group.gate = {Matrix<double>(2, 2)};
  group.gate[0].row(0) << 1, 0;
  group.gate[0].row(1) << 0, -3;
  // Token 0 writes (3, 0) W_O = (3, 3) a third, then (0, -3) W_O = (0, -6) a quarter; token 1 nothing, then
  // (0, -6) W_O = (0, -12) a quarter.
  Workers workers(1);
  const TokenOptions options{2, false, {TokenMetric::oracle_importance}};
  for (const TokenMetrics& metrics :
       {token_metrics_reference(group, options), token_metrics_cpu(group, options, workers)}) {
    CHECK(metrics[TokenMetric::oracle_importance](0, 0) == Approx(1.5).epsilon(1e-14));
    CHECK(metrics[TokenMetric::oracle_importance](0, 1) == Approx(3).epsilon(1e-14));
  }
}

TEST_CASE("oracle_importance with a gate, by its definition", "[gated_importance]") {
  check_importance("one query head", random_group({.G = 1, .d_model = 5, .gate = true}));
  check_importance("three", random_group({.G = 3, .d_v = 5, .d_model = 9, .gate = true, .seed = 2}));
  check_importance("d_v = 1", random_group({.d_v = 1, .d_model = 3, .gate = true, .seed = 3}));
  check_importance(
      "d_v = 33, over items and panels",
      random_group({.l = 150, .T = 190, .d_v = 33, .d_model = 20, .gate = true, .logit_std = 3, .seed = 4}));
  check_importance("queries of some decoding steps",
                   random_group({.T_q = 3, .d_v = 7, .d_model = 9, .gate = true, .seed = 5}));
  HeadGroup<double> group = random_group({.d_v = 7, .d_model = 9, .gate = true, .seed = 6});
  for (HeadMatrix<double>& gate : group.gate) gate.setZero();
  check_importance("a gate of zeros", group);
  group.gate[1].row(3).setConstant(-2);  // negative factors count by their size, in one row of one head
  check_importance("a gate that lets one row through", group);
  // Norms of values and gates say little of what W_O leaves of them.
  group = random_group({.l = 150, .T = 190, .d_v = 9, .d_model = 9, .gate = true, .logit_std = 4, .seed = 7});
  for (Matrix<double>& wo : group.wo)
    for (Index c = 0; c < 9; ++c) wo.row(c) *= std::pow(10.0, -c);
  check_importance("singular values from 1 to 1e-8", group);
  group.v *= 1e-25;  // whose squares float32 does not hold
  check_importance("small values", group);
}

TEST_CASE("a gate of ones is none, one of channels alone is W_O's rows", "[gated_importance]") {
  Workers workers(2);
  HeadGroup<double> gated = random_group(
                        {.d_v = 7, .d_model = 9, .gate = true, .rope = rope_of(Rope::Style::half, 8)}),
                    plain = gated;
  plain.gate.clear();
  TokenOptions options{8, true, MetricSet::all()};
  options.metrics.erase(TokenMetric::kvzip_plus);  // of no dump with a gate
  const auto check_same = [&](const char* name) {
    CHECK(mismatches(name, token_metrics_cpu(plain, options, workers),
                     token_metrics_cpu(gated, options, workers), kDouble) == "");
  };
  for (HeadMatrix<double>& gate : gated.gate) gate.setOnes();
  check_same("ones");  // of the other metrics, expected_attention among them, none looks at it
  for (std::size_t g = 0; g < 2; ++g)
    for (Index c = 0; c < 7; ++c) {
      gated.gate[g].col(c).setConstant(0.5 * static_cast<double>(c) - 1);
      plain.wo[g].row(c) *= 0.5 * static_cast<double>(c) - 1;
    }
  check_same("channels");
}

TEST_CASE("what a gate makes of values beyond the type is refused", "[gated_importance]") {
  Workers workers(2);
  HeadGroup<float> group = to_float(random_group({.d_model = 9, .gate = true}));
  const TokenOptions options{8, false, {TokenMetric::oracle_importance}};
  group.v.row(3).setConstant(1e30F);
  for (HeadMatrix<float>& gate : group.gate) gate.setConstant(1e30F);
  CHECK_THROWS_AS(token_metrics_cpu(group, options, workers), InputError);
}

TEST_CASE("query heads and other precisions keep their gates", "[gated_importance]") {
  const HeadGroup<double> group = random_group({.G = 3, .d_model = 5, .gate = true});
  REQUIRE(group.gate.size() == 3);
  CHECK(converted<float>(group).gate[2] == group.gate[2].cast<float>());
  CHECK(query_head_group(group, 1).gate.at(0) == group.gate[1]);
  CHECK(cache_group(group, {1, 2, 3, 46, 47}, 2).gate.empty());
  HeadGroup<double> without = group;
  without.gate.clear();
  CHECK(bytes_of(group) - bytes_of(without) == sizeof(double) * 3 * 8 * 8);
}
