#include "viewer/questions/figure_map.hpp"

#include "analysis/results/result_reader.hpp"
#include "data/atomic_file.hpp"
#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
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

TEST_CASE("figures say which way is worse", "[figures]") {
  const auto info = [](const char* name) { return figure_info(*head_figure_named(name)); };
  CHECK(info("exact_remove").facts.better == Better::smaller);
  CHECK(info("oracle_next").facts.better == Better::smaller);
  CHECK(info("attn").facts.better == Better::neither);
  CHECK(info("key~exact_key~rel_l1").facts.better == Better::smaller);
  CHECK(info("key~exact_key~spearman").facts.better == Better::larger);
  CHECK(info("key~exact_key~recall@1%").facts.better == Better::larger);
  CHECK(info("key~exact_key~mass@40").facts.better == Better::larger);
  CHECK(info("key~exact_key~rel_l1").facts.scale == FigureScale::log);
  CHECK(info("key~exact_key~mass@40").facts.scale == FigureScale::share);
  CHECK(info("keydiff").facts.scale == FigureScale::linear);
  CHECK(info("exact_key").facts.scale == FigureScale::log);
  CHECK(info("key~exact_key~mass@40").facts.unit == "share of the error");
  CHECK(info("key~exact_key~recall@20%").facts.unit == "share of tokens");
  CHECK(info("key~exact_key~recall@20%").path == std::vector<std::string>{"exact_key", "key", "recall@20%"});
}

TEST_CASE("bars of heads are linear in the values and begin at 0", "[figures]") {
  FigureMap map = empty_map(figure_info({TokenMetric::exact_key, {}, {}}), {0, 1}, 2);
  map.values << 8, 0.8, std::nan(""), 4;
  const HeadBars costs = head_bars(map);
  CHECK(costs.place(costs.amount(8)) == 1);
  CHECK(costs.place(costs.amount(0.8)) == Approx(0.1));  // a tenth of the cost, a tenth of the bar
  CHECK(costs.place(costs.amount(4)) == 0.5);
  CHECK(costs.place(0) == 0);

  map.figure.facts.better = Better::neither;  // a difference
  map.values << -6, 2, 0, -1e-9;
  const HeadBars differences = head_bars(map);
  CHECK(differences.place(0) == 0.75);
  CHECK(differences.place(differences.amount(-6)) == 0);
  CHECK(differences.place(differences.amount(2)) == 1);
  CHECK(differences.place(differences.amount(-1e-9)) == Approx(0.75));

  map.figure = figure_info(*head_figure_named("key~exact_key~spearman"));
  map.values << 0.9, 0.5, 1, std::nan("");
  const HeadBars agreement = head_bars(map);
  CHECK(agreement.amount(1) == 0);
  CHECK(agreement.place(agreement.amount(0.5)) == 1);
  CHECK(agreement.place(agreement.amount(0.9)) == Approx(0.2));

  map.values.setConstant(std::nan(""));
  CHECK(head_bars(map).place(0) == 0);
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

  const std::string compensated = (dir / "compensated").string();
  REQUIRE(test::run_kvreplay({"evict", dump, "--out", compensated, "--policy", "h2o,snapkv", "--keep", "20%",
                              "--compensate", "none,fit,mean", "--quiet"})
              .code == 0);

  for (const std::string& folder : {out, decoded, compensated}) {
    const ResultReader results(folder);
    const ResultFigures figures = result_figures(results);
    CHECK(figures.problems.empty());
    std::set<std::string> names;
    for (const FigureInfo& figure : figures.figures) {
      INFO(figure.name);
      CHECK(names.insert(figure.name).second);
      CHECK_FALSE(figure.path.empty());
      CHECK_FALSE(figure.title.empty());
      // Every number that analyze names is known here, unit and all.
      CHECK(!figure.facts.unit.empty());
      const FigureMap map = figure_map(results, figures, figure.name);
      CHECK(map.values.rows() == 2);
      CHECK(map.values.cols() == 2);
      CHECK(map.heads == 4);
    }
    std::set<Table> groups;
    for (const FigureInfo& figure : figures.figures) groups.insert(figure.table);
    CHECK(groups == (folder == out       ? std::set{Table::heads, Table::agreement, Table::evictions,
                                              Table::budgets, Table::channels}
                     : folder == decoded ? std::set{Table::evictions, Table::decode}
                                         : std::set{Table::evictions, Table::compensation}));
    CHECK(bytes_of(figures) > figures.figures.size() * 8);
  }
  // The tables' numbers are those of the maps of the same figure.
  const ResultReader results(out);
  const ResultFigures figures = result_figures(results);
  const auto agree_in = [&](const ResultReader& reader, const char* figure, const char* map) {
    INFO(figure);
    const Matrix<double> mine = figure_map(reader, result_figures(reader), figure).values,
                         theirs = reader.map(map);
    for (Index i = 0; i < mine.size(); ++i) CHECK(same(theirs.data()[i], mine.data()[i]));
  };
  const auto agree = [&](const char* figure, const char* map) { agree_in(results, figure, map); };
  agree("evictions~h2o+key~paper~prefill~0.5~future~output_error",
        "h2o+key-paper-prefill-31~future~output_error");
  agree("evictions~tova~paper~prefill~0.8~window~output_error", "tova-paper-prefill-12~window~output_error");
  agree("channels~iap~0.5~future~reconstruction_gain", "iap-0.5~future~reconstruction_gain");
  agree("budgets~keydiff~lu~0.8~loss", "keydiff-lu-0.8~loss");
  agree("exact_key~exact_joint~rel_l1", "exact_key~exact_joint~rel_l1");
  CHECK(figures.find("channels~~~window~off_diagonal_share")->path ==
        std::vector<std::string>{"off_diagonal_share"});
  CHECK(figures.find("evictions~tova~paper~prefill~0.8~window~output_error")->facts.better ==
        Better::smaller);
  CHECK(figures.find("nothing") == nullptr);
  expect_error([&] { (void)figure_map(results, figures, "nothing"); },
               {"no figure nothing in these results"});

  const ResultReader made_up(compensated);
  for (const char* what : {"future~output_error", "reference~output_error", "window~selection", "future~mass",
                           "reference~values", "reference~bound"})
    agree_in(made_up, fmt::format("compensation~snapkv~paper~prefill~0.8~fit~{}", what).c_str(),
             fmt::format("snapkv-paper-prefill-12-fit~{}", what).c_str());
  CHECK(result_figures(made_up).find("compensation~h2o~paper~prefill~0.8~mean~future~output_error")->title ==
        "output_error of h2o with mean (paper, prefill) at 0.8, future queries");

  const ResultReader steps(decoded);
  const ResultFigures of_steps = result_figures(steps);
  const FigureMap largest = figure_map(steps, of_steps, "decode~h2o~append-only~paper~0.5~max");
  const ResultReader::Array all = steps.array("decode/h2o~append-only-paper-0.5.npy");
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
  const ResultFigures figures = result_figures(ResultReader(dir.path()));
  REQUIRE(figures.figures.size() == 3);
  CHECK(figures.figures[0].name == "exact_key");
  CHECK(figures.figures[1].name == "attn~exact_key~spearman~reserve0");
  CHECK(figures.figures[1].title == "spearman of attn against exact_key");
  CHECK(figures.figures[2].name == "attn~exact_key~spearman");
  CHECK(figures.figures[2].title == "spearman of attn against exact_key, the last 4 tokens reserved");
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
    const ResultReader results(dir.path());
    const ResultFigures figures = result_figures(results);
    CHECK(figures.figures.size() == (figures.problems.empty() ? 2 : 1));
    const FigureMap share = figure_map(results, figures, "channels~~~window~off_diagonal_share");
    CHECK(share.values(1, 1) == 0.25);
    CHECK(std::isnan(share.values(0, 0)));
    return figures.problems.empty() ? std::string() : figures.problems.front();
  };
  CHECK(problem("1,0,h2o,paper,0.5,mean,0.1\n").empty());
  CHECK(problem("2,0,h2o,paper,0.5,mean,0.1\n")
            .find("decode.csv: line 2: expected heads of the run, found layer 2") != std::string::npos);
  CHECK(problem("1,2,h2o,paper,0.5,mean,0.1\n").find("head 2") != std::string::npos);
  CHECK(problem("1,0,h2o,paper,0.5,mean,much\n").find("line 2: expected a number") != std::string::npos);
  CHECK(problem("1,0,h2o,paper\n").find("line 2: expected 7 fields") != std::string::npos);
}

TEST_CASE("a filter takes the values on one side of a bound", "[figures]") {
  for (const char* typed : {"< 0.8", "<0.8", "  <  80% ", "<8e-1"}) {
    INFO(typed);
    const auto filter = value_filter(typed);
    REQUIRE(filter.has_value());
    CHECK(filter->takes(0.79));
    CHECK_FALSE(filter->takes(0.8));
    CHECK_FALSE(filter->takes(std::nan("")));
  }
  CHECK(value_filter("<=0.8")->takes(0.8));
  CHECK(value_filter(">= -2")->takes(-2));
  CHECK_FALSE(value_filter("> -2")->takes(-2));
  CHECK(value_filter(">-2")->takes(0));
  for (const char* typed : {"", " ", "<", ">=", "0.8", "= 1", "< x", "< 0.8 and", "< nan", "> inf", "< 1e999",
                            "<<1", "< 1 2", "< %"})
    CHECK_FALSE(value_filter(typed).has_value());
}

}  // namespace kvreplay::viewer
