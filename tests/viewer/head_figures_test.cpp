#include "viewer/work/head_figures.hpp"

#include "data/atomic_file.hpp"
#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/work/figure_map.hpp"
#include "viewer/work/result_tables.hpp"

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

constexpr auto kExample = R"({"program": "kvreplay", "schema": 1,
  "dump": {"layers": 4, "n_q": 4, "n_kv": 2, "d": 8, "d_v": 8, "d_model": 0, "T": 12, "T_q": 12, "l": 9},
  "layers": [1, 3], "options": {"tokens": {"reserve": [4, 0]}}})";

}  // namespace

TEST_CASE("names of head figures are those of the maps, there and back", "[figures]") {
  std::set<std::string> names;
  for (const HeadFigure& figure : head_figures(MetricSet::all(), 100)) {
    const std::string name = name_of(figure);
    INFO(name);
    CHECK(head_figure_named(name) == figure);
    names.insert(name);
  }
  // Relative errors are of 3 scores and 4 exact errors against 4 exact errors and 2 oracles, none with
  // itself.
  CHECK(names.size() == 17 + 94 * 11 + 7 * 6 - 4);
  CHECK(names.contains("attn"));
  CHECK(names.contains("attn~exact_remove~recall@10%"));
  CHECK_FALSE(names.contains("attn~exact_remove~rel_l1"));
  CHECK(names.contains("key~exact_key~rel_l1"));
  for (const char* wrong : {"", "att", "attn~", "attn~exact_remove", "attn~exact_remove~recall", "~", "a~b~c",
                            "attn~exact_remove~recall@10%~reserve4"})
    CHECK_FALSE(head_figure_named(wrong));
  for (const HeadFigure& figure : head_figures(MetricSet::all(), 39))  // k = 40 needs 40 candidates
    CHECK((!figure.reference || (figure.figure != Figure::recall_40 && figure.figure != Figure::mass_40)));
}

TEST_CASE("a head's figures are those that tokens exports", "[figures]") {
  const TempDir dir;
  const std::string out = (dir / "out").string();
  REQUIRE(test::run_kvreplay({"tokens", test::sample_dump(), "--out", out, "--precision", "f32", "--window",
                              "20", "--reserve", "0,100", "--layers", "1,4", "--quiet"})
              .code == 0);
  const ResultTables results(out);
  const Dump dump = Dump::open(test::sample_dump());
  Workers workers(2);
  for (const Index reserve : {0, 100}) {
    INFO("reserve " << reserve);
    HeadSummaryOptions options;
    options.window = 20;
    options.metrics = metrics_of(dump);
    options.reserve = reserve;
    std::vector<HeadSummary> heads;
    for (const Index layer : {4, 1})
      for (const Index head : {1, 0})
        heads.push_back(summarise_head(load_head_group<float>(dump, layer, head), options, workers));
    CHECK(heads.front().compared == dump.shape().l - reserve);

    const std::string suffix = reserve == 0 ? "" : "~reserve100";
    const std::vector<FigureInfo> figures = dump_figures(options.metrics, heads.front().compared);
    std::size_t wrong = 0, compared = 0;
    for (const FigureInfo& figure : figures) {
      FigureMap map = empty_map(figure, {1, 4}, 2);
      for (const HeadSummary& head : heads) add(map, head);
      CHECK(map.heads == 4);
      const Matrix<double> wanted =
          results.map(figure.name + (figure.group == FigureGroup::agreement ? suffix : std::string()));
      for (Index i = 0; i < 4; ++i, ++compared) wrong += same(wanted.data()[i], map.values.data()[i]) ? 0 : 1;
    }
    CHECK(wrong == 0);
    CHECK(compared > 4000);

    wrong = compared = 0;
    results.each_row("agreement.csv", [&](const CsvReader& csv, const std::vector<std::string>& row) {
      if (csv.index(row, csv.need("reserve")) != reserve) return;
      const auto figure = head_figure_named(fmt::format("{}~{}~{}", row[csv.need("score")],
                                                        row[csv.need("reference")], row[csv.need("metric")]));
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
    const ResultTables results(out);
    const TokenMetrics stored = read_token_metrics(results, 1, 1);
    for (const TokenMetric m : all_token_metrics()) {
      INFO(name_of(m));
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
  options.reserve = 7;  // more than there are: one stays
  const HeadSummary head = summary_of(metrics, 3, 1, options, workers);
  CHECK(head.compared == 1);
  CHECK(head.value({TokenMetric::attn, {}, {}}) == 6);
  CHECK(std::isnan(head.value({TokenMetric::exact_remove, {}, {}})));
  CHECK(std::isnan(head.value({TokenMetric::key, {}, {}})));
  CHECK(head.value({TokenMetric::attn, TokenMetric::exact_remove, Figure::recall_20pc}) == 1);
  CHECK(std::isnan(head.value({TokenMetric::key, TokenMetric::exact_remove, Figure::spearman})));
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

TEST_CASE("figures say which way is worse", "[figures]") {
  const auto info = [](const char* name) { return figure_info(*head_figure_named(name)); };
  CHECK(info("exact_remove").larger_is_worse == true);
  CHECK(info("oracle_next").larger_is_worse == true);
  CHECK_FALSE(info("attn").larger_is_worse);
  CHECK(info("key~exact_key~rel_l1").larger_is_worse == true);
  CHECK(info("key~exact_key~spearman").larger_is_worse == false);
  CHECK(info("key~exact_key~recall@1%").larger_is_worse == false);
  CHECK(info("key~exact_key~mass@40").larger_is_worse == false);
  CHECK(info("key~exact_key~rel_l1").scale == ScaleKind::log);
  CHECK(info("key~exact_key~mass@40").scale == ScaleKind::linear);
  CHECK(info("keydiff").scale == ScaleKind::linear);
  CHECK(info("exact_key").scale == ScaleKind::log);
  CHECK(info("key~exact_key~mass@40").unit == "share of the error");
  CHECK(info("key~exact_key~recall@20%").unit == "share of tokens");
  CHECK(info("key~exact_key~recall@20%").path == std::vector<std::string>{"exact_key", "key", "recall@20%"});
}

TEST_CASE("the worst head comes first, heads without a value last", "[figures]") {
  FigureMap map = empty_map(figure_info({TokenMetric::exact_key, {}, {}}), {2, 5, 9}, 2);
  map.values << 1, std::nan(""), 7, 1, -HUGE_VAL, HUGE_VAL;
  const auto names = [](const std::vector<HeadPlace>& heads) {
    std::string text;
    for (const HeadPlace& head : heads) text += fmt::format("{}.{} ", head.layer, head.kv_head);
    return text;
  };
  CHECK(names(worst_first(map)) == "9.1 5.0 2.0 5.1 9.0 2.1 ");
  CHECK(names(worst_first(map, false)) == "9.0 2.0 5.1 5.0 9.1 2.1 ");
  CHECK(worst_first(map).front().row == 2);
  CHECK(worst_first(empty_map({}, {}, 2)).empty());
}

TEST_CASE("all figures of a result folder are in its menu, with their numbers", "[figures]") {
  const TempDir dir;
  const std::string out = (dir / "out").string(), dump = (dir / "dump").string();
  test::make_small_dump(dump);
  REQUIRE(test::run_kvreplay({"analyze", dump, "--out", out, "--quiet"}).code == 0);
  const std::string decoded = (dir / "decoded").string();
  REQUIRE(test::run_kvreplay({"evict", dump, "--out", decoded, "--policy", "h2o", "--phase",
                              "prefill,decode,append-only", "--sigma", "0.5", "--quiet"})
              .code == 0);

  for (const std::string& folder : {out, decoded}) {
    const ResultTables results(folder);
    const ResultFigures figures = result_figures(results);
    CHECK(figures.problems.empty());
    std::set<std::string> names;
    for (const FigureInfo& figure : figures.figures) {
      INFO(figure.name);
      CHECK(names.insert(figure.name).second);
      CHECK_FALSE(figure.path.empty());
      CHECK_FALSE(figure.title.empty());
      // Every number that analyze names is known here, unit and all.
      CHECK((!figure.unit.empty() || figure.path.back() == "proven"));
      const FigureMap map = figure_map(results, figures, figure.name);
      CHECK(map.values.rows() == 2);
      CHECK(map.values.cols() == 2);
      CHECK(map.heads == 4);
    }
    std::set<FigureGroup> groups;
    for (const FigureInfo& figure : figures.figures) groups.insert(figure.group);
    CHECK(groups == (folder == out
                         ? std::set{FigureGroup::metrics, FigureGroup::agreement, FigureGroup::evictions,
                                    FigureGroup::budgets, FigureGroup::channels}
                         : std::set{FigureGroup::evictions, FigureGroup::decode}));
    CHECK(bytes_of(figures) > figures.figures.size() * 8);
  }
  // The tables' numbers are those of the maps of the same figure.
  const ResultTables results(out);
  const ResultFigures figures = result_figures(results);
  const auto agree = [&](const char* figure, const char* map) {
    INFO(figure);
    const Matrix<double> mine = figure_map(results, figures, figure).values, theirs = results.map(map);
    for (Index i = 0; i < mine.size(); ++i) CHECK(same(theirs.data()[i], mine.data()[i]));
  };
  agree("evictions~h2o+key~paper~prefill~0.5~future~output_error",
        "h2o+key-paper-prefill-31~future~output_error");
  agree("evictions~tova~paper~prefill~0.8~window~output_error", "tova-paper-prefill-12~window~output_error");
  agree("channels~iap~0.5~future~reconstruction_gain", "iap-0.5~future~reconstruction_gain");
  agree("budgets~keydiff~lu~0.8~loss", "keydiff-lu-0.8~loss");
  agree("exact_key~exact_joint~rel_l1", "exact_key~exact_joint~rel_l1");
  CHECK(figures.find("channels~~~window~off_diagonal_share")->path ==
        std::vector<std::string>{"off_diagonal_share"});
  CHECK(figures.find("evictions~tova~paper~prefill~0.8~window~output_error")->larger_is_worse == true);
  CHECK(figures.find("nothing") == nullptr);
  expect_error([&] { (void)figure_map(results, figures, "nothing"); },
               {"no figure nothing in these results"});

  const ResultTables steps(decoded);
  const ResultFigures of_steps = result_figures(steps);
  const FigureMap largest = figure_map(steps, of_steps, "decode~h2o~append-only~paper~0.5~max");
  const ResultTables::Array all = steps.array("decode/h2o~append-only-paper-0.5.npy");
  REQUIRE(all.shape == std::vector<Index>{2, 2, 9});
  double most = 0;
  for (std::size_t step = 0; step < 9; ++step) most = std::max(most, all.values[2 * 9 + step]);
  CHECK(same(most, largest.values(1, 0)));
}

TEST_CASE("maps of a reserve say so, whichever came first", "[figures]") {
  const TempDir dir;
  write_file(dir / "summary.json", kExample);
  const std::size_t shape[] = {2, 2};
  for (const char* name : {"attn~exact_key~spearman", "attn~exact_key~spearman~reserve0", "exact_key",
                           "other", "attn~exact_key~spearman~reservex"})
    write_npy(dir / fmt::format("maps/{}.npy", name), shape, std::vector<double>(4, 0.5));
  const ResultFigures figures = result_figures(ResultTables(dir.path()));
  REQUIRE(figures.figures.size() == 3);
  CHECK(figures.figures[0].name == "exact_key");
  CHECK(figures.figures[1].name == "attn~exact_key~spearman~reserve0");
  CHECK(figures.figures[1].title == "spearman of attn against exact_key");
  CHECK(figures.figures[2].name == "attn~exact_key~spearman");
  CHECK(figures.figures[2].title == "spearman of attn against exact_key, without the last 4 tokens");
  CHECK(figures.figures[1].path != figures.figures[2].path);
}

TEST_CASE("a bad table takes its own figures away and is named", "[figures]") {
  const TempDir dir;
  write_file(dir / "summary.json", kExample);
  const std::string header = "layer,kv_head,policy,semantics,budget,metric,value\n";
  const auto problem = [&](const std::string& rows) {
    write_file(dir / "decode.csv", header + rows);
    write_file(dir / "channels.csv",
               "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value\n"
               "3,1,,paper,,32,,window,off_diagonal_share,0.25\n");
    const ResultTables results(dir.path());
    const ResultFigures figures = result_figures(results);
    CHECK(figures.figures.size() == (figures.problems.empty() ? 2 : 1));
    const FigureMap share = figure_map(results, figures, "channels~~~window~off_diagonal_share");
    CHECK(share.values(1, 1) == 0.25);
    CHECK(std::isnan(share.values(0, 0)));
    return figures.problems.empty() ? std::string() : figures.problems.front();
  };
  CHECK(problem("1,0,h2o,paper,0.5,mean,0.1\n").empty());
  CHECK(
      problem("2,0,h2o,paper,0.5,mean,0.1\n").find("decode.csv: expected heads of the run, found layer 2") !=
      std::string::npos);
  CHECK(problem("1,2,h2o,paper,0.5,mean,0.1\n").find("head 2") != std::string::npos);
  CHECK(problem("1,0,h2o,paper,0.5,mean,much\n").find("line 2: expected a number") != std::string::npos);
  CHECK(problem("1,0,h2o,paper\n").find("line 2: expected 7 fields") != std::string::npos);
}

}  // namespace kvreplay::viewer
