#include "analysis/results/result_reader.hpp"
#include "data/dump.hpp"
#include "data/error.hpp"
#include "sim/head_group.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/head_figures.hpp"

#include <array>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

TEST_CASE("a query head's own figures are those of a group that has it alone", "[query_head]") {
  const HeadGroup<double> group = random_group({.l = 67, .T = 75, .G = 3, .d = 5, .d_v = 3});
  Workers workers(2);
  HeadSummaryOptions options;
  options.window = 9;
  options.metrics = available_metrics(group);
  for (const TokenMetric m : kTokenMetrics.all())
    if (joins_heads(m)) options.metrics.erase(m);
  const HeadSummary all = summarise_head(to_float(group), options, workers);
  std::array<double, 3> sums{};
  for (Index g = 0; g < 3; ++g) {
    const HeadSummary found = summarise_head(to_float(group), options, workers, g);
    const TokenMetrics judged =
        token_metrics_reference(query_head_group(group, g), {options.window, false, options.metrics});
    for (const TokenMetric m : kTokenMetrics.all()) {
      if (!options.metrics.contains(m)) continue;
      INFO(name_of(m) << ", query head " << g);
      const Matrix<double>& values = (*found.tokens)[m];
      REQUIRE(values.rows() == 1);
      REQUIRE(values.cols() == 67);
      // float32 inputs and tiles: far below what tells query heads apart.
      const double most = judged[m].cwiseAbs().maxCoeff();
      CHECK((values - judged[m]).cwiseAbs().maxCoeff() <= 1e-3 * most + 1e-9);
    }
    sums[g] = found.value({TokenMetric::attn, {}, {}});
  }
  CHECK(sums[0] + sums[1] + sums[2] == Approx(all.value({TokenMetric::attn, {}, {}})));
}

TEST_CASE("a result folder written per query head gives each its own, one of sums gives none",
          "[query_head]") {
  const TempDir dir;
  for (const bool own : {false, true}) {
    const std::string out = (dir / (own ? "q" : "kv")).string();
    std::vector<std::string> command{"tokens", sample_dump(), "--out", out, "--layers", "2", "--quiet"};
    if (own) command.emplace_back("--per-query-head");
    succeed(command);
  }
  const ResultReader sums(dir / "kv"), single(dir / "q");
  CHECK_FALSE(read_query_head_metrics(sums, 2, 1, 0).has_value());
  const Dump dump = Dump::open(sample_dump());
  Workers workers(2);
  HeadSummaryOptions options;
  options.metrics = metrics_of(dump);
  for (const Index query_head : {0, 1}) {
    const auto read = read_query_head_metrics(single, 2, 1, query_head);
    REQUIRE(read.has_value());
    const HeadSummary live = summarise_head(load_head_group<float>(dump, 2, 1), options, workers, query_head);
    for (const TokenMetric m : kTokenMetrics.all()) {
      if ((*read)[m].size() == 0) continue;
      INFO(name_of(m));
      CHECK((*read)[m].cast<float>() == (*live.tokens)[m].cast<float>());
    }
  }
  CHECK_THROWS_AS(read_query_head_metrics(single, 3, 1, 0), InputError);  // not a layer of the run
}
