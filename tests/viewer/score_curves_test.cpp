#include "viewer/questions/score_curves.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/head_figures.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Positive values over 8 decades with ties and zeros.
std::vector<double> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> values(n);
  for (double& value : values) {
    const auto kind = random() % 8;
    value = kind == 0   ? 0.0
            : kind == 1 ? 0.25
                        : std::pow(10.0, static_cast<double>(random() % 8000) / 1000 - 4);
  }
  return values;
}

ScoreCurve curve_of(const std::vector<double>& score, const std::vector<double>& reference) {
  return {Ranking(score), Ranking(reference)};
}

/// The k largest by definition: sorted, ties by position.
std::set<std::size_t> top(const std::vector<double>& values, std::size_t k) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)};
}

}  // namespace

TEST_CASE("curves at every budget are the definitions", "[curves]") {
  for (const std::size_t n : {1, 2, 3, 40, 97}) {
    INFO(n);
    const std::vector<double> s = random_values(n, 1), e = random_values(n, 2);
    const ScoreCurve curve = curve_of(s, e);
    REQUIRE(curve.n() == n);
    const long double total = std::accumulate(e.begin(), e.end(), 0.0L);
    for (std::size_t k = 0; k <= n; ++k) {
      const auto mine = top(s, k), best = top(e, k);
      std::size_t common = 0;
      long double held = 0, left = 0;
      for (std::size_t p = 0; p < n; ++p) {
        common += mine.contains(p) && best.contains(p) ? 1 : 0;
        (mine.contains(p) ? held : left) += static_cast<long double>(e[p]);
      }
      const CurvePoint at = curve.at(static_cast<Index>(k));
      if (k == 0)
        CHECK(std::isnan(at.recall));
      else
        CHECK(at.recall == static_cast<double>(common) / static_cast<double>(k));
      if (total > 0)
        CHECK(at.mass == Approx(static_cast<double>(held / total)).epsilon(1e-12).margin(1e-15));
      else
        CHECK(std::isnan(at.mass));
      CHECK(at.loss == Approx(static_cast<double>(left)).epsilon(1e-15));
    }
  }
}

TEST_CASE("curves agree with agreement at its cuts", "[curves]") {
  for (const std::size_t n : {5, 39, 40, 896, 1000}) {
    INFO(n);
    const std::vector<double> s = random_values(n, 3), e = random_values(n, 4);
    const ScoreCurve curve = curve_of(s, e);
    const Agreement figures = agreement(s, e, false);
    const auto cuts = agreement_cuts(n);
    for (std::size_t c = 0; c < kCuts; ++c) {
      if (!cuts[c]) continue;
      const CurvePoint at = curve.at(static_cast<Index>(*cuts[c]));
      CHECK(at.recall == figures.values[static_cast<std::size_t>(AgreementFigure::recall_40) + c]);
      CHECK(at.mass == figures.values[static_cast<std::size_t>(AgreementFigure::mass_40) + c]);
    }
  }
}

TEST_CASE("curves obey their laws", "[curves]") {
  const std::vector<double> s = random_values(300, 5), e = random_values(300, 6);
  const ScoreCurve curve = curve_of(s, e), best = curve_of(e, e);
  for (Index k = 1; k <= 300; ++k) {
    CHECK(best.at(k).recall == 1);
    CHECK(best.at(k).loss <= curve.at(k).loss);
    CHECK(curve.at(k).loss <= curve.at(k - 1).loss);
    CHECK(curve.at(k).mass >= curve.at(k - 1).mass);
  }
  CHECK(curve.at(300).recall == 1);
  CHECK(curve.at(300).mass == Approx(1).epsilon(1e-14));
  CHECK(curve.at(300).loss == 0);
  CHECK(curve.at(0).mass == 0);
  CHECK(curve.at(-5).loss == curve.at(0).loss);
  CHECK(curve.at(1000).loss == 0);
  // A small loss beside a large one keeps its digits.
  const ScoreCurve sink = curve_of({3, 2, 1}, {1e20, 1e-20, 3e-20});
  CHECK(sink.at(1).loss == Approx(4e-20).epsilon(1e-15));
  CHECK(sink.at(2).loss == 3e-20);
}

TEST_CASE("curves stand NaN, infinities, equal values and no tokens", "[curves]") {
  const double nan = std::nan("");
  const ScoreCurve none = curve_of({}, {});
  CHECK(none.n() == 0);
  CHECK(std::isnan(none.at(0).recall));
  CHECK(none.at(3).loss == 0);

  const ScoreCurve equal = curve_of({1, 1, 1}, {0, 0, 0});  // ties: the lower positions on both sides
  CHECK(equal.at(2).recall == 1);
  CHECK(std::isnan(equal.at(2).mass));
  CHECK(equal.at(2).loss == 0);

  const ScoreCurve odd = curve_of({nan, 2, 1}, {1, nan, 3});
  CHECK(odd.at(1).recall == 0);
  CHECK(odd.at(2).recall == 0.5);
  CHECK(odd.at(3).recall == 1);
  CHECK(odd.at(1).loss == 4);
  CHECK(std::isnan(odd.at(0).loss));

  const ScoreCurve endless = curve_of({1, 2}, {1, HUGE_VAL});
  CHECK(endless.at(0).loss == HUGE_VAL);
  CHECK(endless.at(1).loss == 1);
}

TEST_CASE("budgets lie evenly in log k with both ends exact", "[curves]") {
  CHECK(log_spaced(0, 10).empty());
  CHECK(log_spaced(1, 10) == std::vector<Index>{1});
  CHECK(log_spaced(10, 10).size() == 10);
  CHECK(log_spaced(1000, 2) == std::vector<Index>{1, 1000});
  CHECK(log_spaced(1000, 0) == std::vector<Index>{1, 1000});
  CHECK(log_spaced(1000, 4) == std::vector<Index>{1, 10, 100, 1000});
  for (const Index n : {11, 999, 1001, 4096, 131072}) {
    const std::vector<Index> budgets = log_spaced(n, 1000);
    INFO(n);
    CHECK(budgets.size() <= 1000);
    CHECK(budgets.front() == 1);
    CHECK(budgets.back() == n);
    CHECK(std::adjacent_find(budgets.begin(), budgets.end(), std::greater_equal<>()) == budgets.end());
    for (std::size_t i = 1; i < budgets.size(); ++i)  // no hole: one token, or a step of the log axis
      CHECK(static_cast<double>(budgets[i]) <=
            std::max(
                static_cast<double>(budgets[i - 1]) + 1.0,
                static_cast<double>(budgets[i - 1] + 1) * std::pow(static_cast<double>(n), 1.0 / 999) + 1));
  }
}

TEST_CASE("all scores of a head at once", "[curves]") {
  Workers workers(2);
  TokenMetrics metrics;
  for (const TokenMetric m : {TokenMetric::attn, TokenMetric::key, TokenMetric::exact_remove}) {
    const std::vector<double> values = random_values(2500, static_cast<unsigned>(m) + 10);
    metrics[m] = Eigen::Map<const Matrix<double>>(values.data(), 1, 2500);
  }
  MetricSet scores = MetricSet::standard();
  scores.erase(TokenMetric::key);
  const ScoreCurves curves = score_curves(metrics, scores, TokenMetric::exact_remove, 2400, 500, workers);
  CHECK(curves.n == 2400);
  REQUIRE(curves.curves.size() == 2);
  CHECK(curves.find(TokenMetric::key) == nullptr);
  const ScoreCurves::Curve* attn = curves.find(TokenMetric::attn);
  REQUIRE(attn != nullptr);
  REQUIRE(attn->recall.size() == curves.budgets.size());
  const auto compared = [&](TokenMetric m) {
    return std::vector(metrics[m].data(), metrics[m].data() + 2400);
  };
  const ScoreCurve alone = curve_of(compared(TokenMetric::attn), compared(TokenMetric::exact_remove));
  for (std::size_t i = 0; i < curves.budgets.size(); ++i) {
    const CurvePoint at = alone.at(curves.budgets[i]);
    CHECK(attn->recall[i] == at.recall);
    CHECK(attn->mass[i] == at.mass);
    CHECK(attn->loss[i] == at.loss);
  }
  CHECK(curves.find(TokenMetric::exact_remove)->recall[7] == 1);
  CHECK(curves.total == Approx(alone.at(0).loss));
  CHECK(bytes_of(curves) > 2 * 2400 * 20);
  CHECK(score_curves(metrics, scores, TokenMetric::exact_remove, 0, 500, workers).budgets.empty());
}

TEST_CASE("the loss against importance is what evict calls eviction_loss", "[curves]") {
  const test::TempDir dir;
  const std::string out = (dir / "out").string();
  REQUIRE(test::run_kvreplay({"evict", test::sample_dump(), "--out", out, "--policy", "oracle,h2o+value",
                              "--window", "32", "--sinks", "0", "--recent", "0", "--pool", "none", "--budget",
                              "17,300", "--layers", "2", "--quiet"})
              .code == 0);
  const test::Evictions evictions(out);
  const Dump dump = Dump::open(test::sample_dump());
  Workers workers(2);
  for (const Index head : {0, 1}) {
    HeadSummaryOptions options;
    options.metrics = {TokenMetric::value, TokenMetric::oracle_importance};
    const HeadSummary summary = summarise_head(load_head_group<float>(dump, 2, head), options, workers);
    const ScoreCurves curves = score_curves(*summary.tokens, options.metrics, TokenMetric::oracle_importance,
                                            summary.l, 1000, workers);
    for (const Index budget : {17, 300}) {
      const auto loss = [&](TokenMetric score) { return curves.find(score)->exact.at(budget).loss; };
      const std::string scope = "2," + std::to_string(head), kept = std::to_string(budget);
      INFO(scope << " at " << kept);
      CHECK(loss(TokenMetric::oracle_importance) ==
            Approx(evictions.at(scope, "oracle,paper,prefill," + kept, "future", "eviction_loss"))
                .epsilon(1e-6));
      CHECK(loss(TokenMetric::value) ==
            Approx(evictions.at(scope, "h2o+value,paper,prefill," + kept, "future", "eviction_loss"))
                .epsilon(1e-6));
    }
  }
}

}  // namespace kvreplay::viewer
