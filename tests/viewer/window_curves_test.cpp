#include "analysis/results/agreement.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "viewer/questions/score_curves.hpp"

#include <algorithm>
#include <span>

namespace kvreplay::viewer {
namespace {

const Dump& sample() {
  static const Dump dump = Dump::open(test::sample_dump());
  return dump;
}

}  // namespace

TEST_CASE("recall over windows is that of a run on each of them", "[curves]") {
  Workers workers(2);
  const HeadGroup<float> group = load_head_group<float>(sample(), 2, 1);
  const std::optional<Index> query_head = GENERATE(std::optional<Index>(), std::optional<Index>(1));
  const MetricSet wanted{TokenMetric::attn, TokenMetric::joint, TokenMetric::knorm, TokenMetric::exact_remove,
                         TokenMetric::oracle_next};
  const WindowMetrics metrics = window_metrics(group, wanted, query_head, workers);
  CHECK(metrics.windows == std::vector<Index>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 896});
  for (const TokenMetric reference : {TokenMetric::oracle_next, TokenMetric::exact_remove}) {
    const WindowCurves curves = window_curves(metrics, reference, 40, 20, workers);
    CHECK(curves.windows == metrics.windows);
    REQUIRE(curves.curves.size() ==
            (reference == TokenMetric::exact_remove ? 2 : 3));  // knorm sees no window
    for (std::size_t w = 0; w < curves.windows.size(); ++w) {
      HeadSummaryOptions options;
      options.window = curves.windows[w];
      options.metrics = wanted;
      const HeadSummary head = summarise_head(group, options, workers, query_head);
      for (const WindowCurves::Curve& curve : curves.curves) {
        INFO(name_of(curve.score) << " on " << curves.windows[w]);
        CHECK(curve.recall[w] == head.value({curve.score, reference, AgreementFigure::recall_40}));
        const auto values = [&](TokenMetric m) {
          return Ranking({(*head.tokens)[m].data(), static_cast<std::size_t>(head.l)});
        };
        const Ranking score = values(curve.score), of = values(reference);
        CHECK(curve.reserved[w] ==
              with_reserve(agreement(score, of, false), score, of, 20)[AgreementFigure::recall_40]);
      }
    }
  }
  CHECK(window_curves(metrics, TokenMetric::oracle_next, 20, 20, workers).curves.front().reserved.empty());
  CHECK(window_curves(metrics, TokenMetric::oracle_next, 896, 20, workers).curves.front().recall.front() ==
        1);
  CHECK(bytes_of(metrics) > 11 * 5 * 896 * sizeof(double));
}

}  // namespace kvreplay::viewer
