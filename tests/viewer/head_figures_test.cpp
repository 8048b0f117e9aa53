#include "viewer/questions/head_figures.hpp"

#include "analysis/results/result_reader.hpp"
#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/figure_map.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

using test::expect_error;
using test::TempDir;

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 1e-12 * std::abs(a);
}

}  // namespace

TEST_CASE("names of head figures are those of the maps, there and back", "[figures]") {
  std::set<std::string> names;
  for (const HeadFigure& figure : head_figures(MetricSet::standard(), 100)) {
    const std::string name = name_of(figure);
    INFO(name);
    CHECK(head_figure_named(name) == figure);
    names.insert(name);
  }
  // Relative errors are of 3 scores and 4 exact errors against 4 exact errors and 2 oracles, none with
  // itself, and of one loss against another.
  CHECK(names.size() == 20 + 139 * 11 + 7 * 6 - 4 + 1);
  CHECK(names.contains("attn"));
  CHECK(names.contains("attn~exact_remove~recall@10%"));
  CHECK_FALSE(names.contains("attn~exact_remove~rel_l1"));
  CHECK(names.contains("key~exact_key~rel_l1"));
  for (const char* wrong : {"", "att", "attn~", "attn~exact_remove", "attn~exact_remove~recall", "~", "a~b~c",
                            "attn~exact_remove~recall@10%~reserve4", "attn~exact_remove~recall@10%~window4"})
    CHECK_FALSE(head_figure_named(wrong));
  for (const HeadFigure& figure : head_figures(MetricSet::standard(), 39))  // k = 40 needs 40 candidates
    CHECK((!figure.reference ||
           (figure.figure != AgreementFigure::recall_40 && figure.figure != AgreementFigure::mass_40)));
}

TEST_CASE("a head's figures are those that tokens exports", "[figures]") {
  const TempDir dir;
  const std::string out = (dir / "out").string();
  REQUIRE(test::run_kvreplay({"tokens", test::sample_dump(), "--out", out, "--precision", "f32", "--window",
                              "20,100", "--reserve", "0,100", "--layers", "1,4", "--quiet"})
              .code == 0);
  const ResultReader results(out);
  const Dump dump = Dump::open(test::sample_dump());
  Workers workers(2);
  HeadSummaryOptions options;
  options.window = 20;
  options.metrics = metrics_of(dump);
  std::vector<HeadSummary> heads;
  for (const Index layer : {4, 1})
    for (const Index head : {1, 0})
      heads.push_back(summarise_head(load_head_group<float>(dump, layer, head), options, workers));
  const std::vector<FigureInfo> figures = dump_figures(options.metrics, heads.front().l);
  std::size_t wrong = 0, compared = 0;
  for (const FigureInfo& figure : figures) {
    FigureMap map = empty_map(figure, {1, 4}, 2);
    for (const HeadSummary& head : heads) add(map, head);
    CHECK(map.heads == 4);
    const Matrix<double> wanted = results.map(figure.name);
    for (Index i = 0; i < 4; ++i, ++compared) wrong += same(wanted.data()[i], map.values.data()[i]) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(compared > 4000);

  wrong = compared = 0;
  results.each_row(Table::agreement, [&](const CsvReader& csv, const std::vector<std::string>& row) {
    if (csv.index(row, csv.need("reserve")) != 0 || csv.index(row, csv.need("window")) != 20) return;
    const auto figure = head_figure_named(
        fmt::format("{}~{}~{}", row[csv.need("score")], row[csv.need("reference")], row[csv.need("metric")]));
    REQUIRE(figure);
    for (const HeadSummary& head : heads)
      if (head.layer == csv.index(row, 0) && head.kv_head == csv.index(row, 1)) {
        wrong += same(csv.number(row, csv.need("value")), head.value(*figure)) ? 0 : 1;
        ++compared;
      }
  });
  CHECK(wrong == 0);
  CHECK(compared > 4000);
}

TEST_CASE("token metrics of a result folder are those of the dump, rounded to float", "[figures]") {
  const TempDir dir;
  const std::string dump_path = (dir / "dump").string();
  test::make_small_dump(dump_path);
  const Dump dump = Dump::open(dump_path);
  Workers workers(1);
  HeadSummaryOptions options;
  options.metrics = metrics_of(dump);
  const HeadSummary live = summarise_head(load_head_group<float>(dump, 1, 1), options, workers);
  REQUIRE(live.tokens);
  CHECK(live.l == 61);
  for (const bool per_query_head : {false, true}) {
    const std::string out = (dir / (per_query_head ? "q" : "kv")).string();
    std::vector<std::string> command{"tokens", dump_path, "--out", out, "--quiet"};
    if (per_query_head) command.emplace_back("--per-query-head");
    REQUIRE(test::run_kvreplay(command).code == 0);
    const ResultReader results(out);
    const TokenMetrics stored = read_token_metrics(results, 1, 1);
    for (const TokenMetric m : kTokenMetrics.all()) {
      INFO(name_of(m));
      if (!options.metrics.contains(m)) continue;
      REQUIRE(stored[m].rows() == (*live.tokens)[m].rows());
      REQUIRE(stored[m].cols() == 61);
      const double largest = (*live.tokens)[m].cwiseAbs().maxCoeff();
      CHECK((stored[m] - (*live.tokens)[m]).cwiseAbs().maxCoeff() <= 1e-6 * largest);
    }
    expect_error([&] { (void)read_token_metrics(results, 2, 0); }, {"no layer 2"});
    expect_error([&] { (void)read_token_metrics(results, 0, 2); }, {"a KV head 2"});
    const std::size_t shape[] = {2, 60};
    write_npy(results.folder() / "layer_00/tokens/attn.npy", shape, std::vector<float>(120));
    expect_error([&] { (void)read_token_metrics(results, 0, 0); },
                 {"attn.npy: expected shape [2, 61]", "[2, 60]"});
  }
}

TEST_CASE("a summary knows what it holds", "[figures]") {
  Workers workers(1);
  TokenMetrics metrics;
  metrics[TokenMetric::attn] = Matrix<double>::Constant(1, 3, 2.0);
  Matrix<double> error(1, 3);
  error << 5, std::nan(""), 1;
  metrics[TokenMetric::exact_remove] = error;
  HeadSummaryOptions options;
  const HeadSummary head = summary_of(metrics, 3, 1, options, workers);
  CHECK(head.value({TokenMetric::attn, {}, {}}) == 6);
  CHECK(std::isnan(head.value({TokenMetric::exact_remove, {}, {}})));
  CHECK(std::isnan(head.value({TokenMetric::key, {}, {}})));
  CHECK(head.value({TokenMetric::attn, TokenMetric::exact_remove, AgreementFigure::recall_20pc}) == 1);
  CHECK(std::isnan(head.value({TokenMetric::key, TokenMetric::exact_remove, AgreementFigure::spearman})));
  CHECK(bytes_of(head) > 6 * sizeof(double) + sizeof(HeadSummary));
  options.keep_tokens = false;
  const HeadSummary small = summary_of(metrics, 3, 1, options, workers);
  CHECK(small.tokens == nullptr);
  CHECK(bytes_of(small) < bytes_of(head));

  FigureMap map = empty_map(figure_info({TokenMetric::attn, {}, {}}), {1, 3}, 2);
  add(map, head);
  CHECK(map.heads == 1);
  CHECK(map.values(1, 1) == 6);
  CHECK(std::isnan(map.values(0, 0)));
  HeadSummary elsewhere = head;
  elsewhere.layer = 2;
  add(map, elsewhere);
  elsewhere.layer = 1;
  elsewhere.kv_head = 2;
  add(map, elsewhere);
  CHECK(map.heads == 1);

  const HeadSummary nothing = summary_of({}, 0, 0, {}, workers);
  CHECK(nothing.l == 0);
  CHECK(nothing.pairs.empty());
}

}  // namespace kvreplay::viewer
