#include "analysis/results/figures.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"
#include "data/atomic_file.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

constexpr double kT = 3.182446305284263;  // of 95 % with three degrees of freedom

using test::expect_error;
using test::TempDir;

const std::string kSummary = R"({"program": "kvreplay", "schema": 1,
  "dump": {"model": "m", "fingerprint": "f", "layers": 2, "n_q": 4, "n_kv": 2, "d": 8, "d_v": 8, "d_model": 0,
           "T": 12, "T_q": 12, "l": 9}, "layers": [0, 1]})";

/// A result folder of one table.
ResultReader results_of(const std::filesystem::path& folder, const std::string& table,
                        const std::string& csv) {
  write_file(folder / "summary.json", kSummary);
  write_file(folder / (table + ".csv"), csv);
  return ResultReader(folder);
}

struct Seen {
  std::vector<std::string> keys;
  std::vector<double> values;
};
Seen figures_of(const ResultReader& results, Table table) {
  Seen seen;
  const MetricTable metrics(results, table);
  metrics.each_row([&](const MetricEntry& entry, Scope scope, double value) {
    std::vector<std::string> keys = metrics.fields_of(scope);
    keys.insert(keys.end(), entry.key.begin(), entry.key.end());
    seen.keys.push_back(joined(keys));
    seen.values.push_back(value);
  });
  return seen;
}

}  // namespace

TEST_CASE("Student's t has the values of the tables", "[tables]") {
  // Two-sided 95 %, degrees of freedom n - 1 of n = 2, 3, 4, 5, 10, 11, 31, 101.
  const std::vector<std::pair<std::ptrdiff_t, double>> known = {
      {1, 12.706204736174698}, {2, 4.302652729749464},  {3, 3.1824463052837078}, {4, 2.7764451051977943},
      {9, 2.262157162798204},  {10, 2.228138851986273}, {30, 2.042272456301237}, {100, 1.9839715185235518}};
  for (const auto& [freedom, t] : known) {
    INFO(freedom);
    CHECK(student_t(0.95, freedom) == Approx(t).epsilon(1e-10));
  }
  CHECK(student_t(0.99, 5) == Approx(4.032142983557536).epsilon(1e-10));
  CHECK(student_t(0.5, 1) == Approx(1).epsilon(1e-12));
  CHECK(student_t(0.95, 1'000'000) == Approx(1.959963984540054).epsilon(2e-6));
  CHECK(student_t(0.95, PTRDIFF_MAX) == student_t(0.95, 1'000'000));
}

TEST_CASE("means over dumps have n - 1 and Student's interval", "[tables]") {
  const auto over = [](std::initializer_list<double> values) {
    RunningMean mean;
    for (const double value : values) mean.add(value);
    return mean.result();
  };
  const OverDumps four = over({2, 4, 9, 5});
  CHECK(four.n == 4);
  CHECK(four.mean == 5);
  CHECK(four.sd == Approx(std::sqrt(26.0 / 3)).epsilon(1e-14));
  CHECK(four.high - 5 == Approx(kT * std::sqrt(26.0 / 3) / 2).epsilon(1e-9));
  CHECK(5 - four.low == Approx(four.high - 5).epsilon(1e-12));
  CHECK(std::isnan(four.geometric_mean));
  CHECK(four.center() == 5);
  const OverDumps three = over({2, 4, 9});
  CHECK(three.sd == Approx(std::sqrt(13.0)).epsilon(1e-14));
  CHECK((std::isnan(three.low) && std::isnan(three.high)));  // nor have three
  const OverDumps gaps = over({std::nan(""), 2, std::nan(""), 4});
  CHECK(gaps.n == 2);
  CHECK(gaps.mean == 3);
  CHECK(gaps.sd == Approx(std::sqrt(2.0)));
  CHECK(std::isnan(gaps.low));  // two prompts have no interval
  CHECK(std::isnan(gaps.high));
  CHECK(mean_text(gaps) == "3");
  const OverDumps one = over({7, std::nan("")});
  CHECK(one.n == 1);
  CHECK(one.mean == 7);
  CHECK(std::isnan(one.sd));
  CHECK(std::isnan(one.low));
  CHECK(std::isnan(one.high));
  CHECK(mean_text(one) == "7");
  const OverDumps none = over({std::nan("")});
  CHECK(none.n == 0);
  CHECK(std::isnan(none.mean));
  CHECK(mean_text(none) == "-");
  const OverDumps endless = over({1, HUGE_VAL, 2});
  CHECK(endless.mean == HUGE_VAL);
  CHECK(std::isnan(endless.high));
  // The same value any number of times: no spread at all, whatever the value.
  const OverDumps same = over({0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1});
  CHECK(same.mean == 0.1);
  CHECK(same.sd == 0);
  CHECK(mean_text(same) == "0.1 [0.1, 0.1]");
  // Far from zero with little spread, where sums of squares would cancel.
  const OverDumps far = over({1e9 + 1, 1e9 + 2, 1e9 + 3});
  CHECK(far.sd == Approx(1).epsilon(1e-12));
}

TEST_CASE("of positive figures over decades the interval is that of the geometric mean", "[tables]") {
  const auto over = [](std::initializer_list<double> values) {
    RunningMean mean(FigureScale::log);
    for (const double value : values) mean.add(value);
    return mean.result();
  };
  const OverDumps four = over({0.01, 0.1, 1, 0.1});
  CHECK(four.geometric_mean == Approx(0.1).epsilon(1e-12));
  CHECK(four.center() == four.geometric_mean);
  CHECK(four.mean == Approx(0.3025).epsilon(1e-12));
  // A standard deviation of ln 10 sqrt(2 / 3).
  const double half = kT * std::log(10.0) * std::sqrt(2.0 / 3) / 2;
  CHECK(std::log(four.high / 0.1) == Approx(half).epsilon(1e-9));
  CHECK(std::log(0.1 / four.low) == Approx(half).epsilon(1e-9));
  CHECK(four.low > 0);
  // With a zero there is no geometric mean: the plain one's interval.
  const OverDumps zero = over({0, 0.1, 0.2, 0.1});
  CHECK(std::isnan(zero.geometric_mean));
  CHECK(zero.center() == Approx(0.1));
  CHECK(zero.low == 0);  // which an error cannot be less than
  CHECK(zero.high == Approx(0.1 + kT * 0.1 * std::sqrt(2.0 / 3) / 2));
  CHECK(mean_text(over({1500, 1600})) == "1549");
  CHECK(mean_text(over({1500, 1600, 1550, 1550})) == "1550 [1486, 1616]");
}

TEST_CASE("rank correlations are averaged by Fisher's z", "[tables]") {
  const auto over = [](std::initializer_list<double> values) {
    RunningMean mean(FigureScale::correlation);
    for (const double value : values) mean.add(value);
    return mean.result();
  };
  // z: 0.5493061443, 1.4722194895, 1.9459101491, 1.0986122887; their mean 1.2665120179, standard deviation
  // 0.5906132318.
  const OverDumps four = over({0.5, 0.9, 0.96, 0.8});
  CHECK(four.mean == Approx(0.8528494871).epsilon(1e-9));
  CHECK(four.center() == four.mean);
  CHECK(std::isnan(four.geometric_mean));
  CHECK(four.sd == Approx(0.2042873793).epsilon(1e-8));
  CHECK(four.low == Approx(0.3155655892).epsilon(1e-9));
  CHECK(four.high == Approx(0.9760436592).epsilon(1e-9));
  // As far the other way round.
  const OverDumps turned = over({-0.5, -0.9, -0.96, -0.8});
  CHECK(turned.mean == Approx(-four.mean).epsilon(1e-14));
  CHECK(turned.low == Approx(-four.high).epsilon(1e-14));
  CHECK(std::isnan(over({0.5, 0.9}).low));
  CHECK(over({0.5, 0.9}).mean == Approx(std::tanh((0.5493061443 + 1.4722194895) / 2)).epsilon(1e-9));

  // A correlation of 1 has no z: the plain mean, and an interval that ends where correlations do.
  const OverDumps exact = over({1, 0.7, 0.4, 0.7});
  CHECK(exact.mean == Approx(0.7));
  CHECK(exact.low == Approx(0.7 - kT * 0.3 * std::sqrt(2.0 / 3) / 2).epsilon(1e-9));
  CHECK(exact.high == 1);
  const OverDumps perfect = over({1, 1, 1, 1});
  CHECK(mean_text(perfect) == "1 [1, 1]");
  CHECK(mean_text(over({-1, -1, -1, -1})) == "-1 [-1, -1]");
}

TEST_CASE("no interval goes beyond what its figure can be", "[tables]") {
  const auto over = [](FigureScale scale, std::initializer_list<double> values) {
    RunningMean mean(scale);
    for (const double value : values) mean.add(value);
    return mean.result();
  };
  const OverDumps share = over(FigureScale::share, {0, 0.9, 1, 0.1});
  CHECK(share.mean == Approx(0.5));
  CHECK(share.low == 0);
  CHECK(share.high == 1);
  const OverDumps inside = over(FigureScale::share, {0.4, 0.5, 0.6, 0.5});
  CHECK(inside.low == Approx(0.5 - kT * 0.1 * std::sqrt(2.0 / 3) / 2).epsilon(1e-9));
  CHECK(inside.high == Approx(0.5 + kT * 0.1 * std::sqrt(2.0 / 3) / 2).epsilon(1e-9));
  const OverDumps gain = over(FigureScale::gain, {-2, 0.9, 0.8, 0.7});
  CHECK(gain.high == 1);
  CHECK(gain.low < -2);
  const OverDumps plain = over(FigureScale::linear, {1, 9, 2, 3});
  CHECK(plain.low < 0);
}

TEST_CASE("the median head stands beside errors summed over heads", "[tables]") {
  const TempDir dir;
  const std::string eviction = "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value\n";
  const auto row = [](const char* scope, const char* metric, double value) {
    return fmt::format("{},h2o,paper,prefill,0.5,4,future,{},{}\n", scope, metric, value);
  };
  const ResultReader results = results_of(
      dir / "e", "evictions",
      eviction + row("0,0", "output_error", 0.9) + row("0,1", "output_error", 0.02) + row("0,1", "bytes", 8) +
          row("0,", "output_error", 0.5) + row("1,0", "output_error", 0.01) +
          row("1,1", "output_error", 0.04) + row(",", "output_error", 0.6) + row(",", "bytes", 8));
  const std::vector<MetricEntry> found = median_heads(MetricTable(results, Table::evictions));
  REQUIRE(found.size() == 1);  // bytes are no error
  CHECK(joined(found[0].key) == "h2o,paper,prefill,0.5,future,\"output_error, median head\"");
  CHECK(found[0].model == Approx(0.03));
  CHECK_FALSE(found[0].any_heads());
  CHECK(is_error_of_heads(facts_of(EvictionFigure::output_error)));
  CHECK(is_error_of_heads(facts_of(ChannelFigure::relative_reconstruction_error)));
  CHECK(is_error_of_heads(facts_of(BudgetFigure::output_error)));
  CHECK_FALSE(is_error_of_heads(facts_of(EvictionFigure::layer_output_error)));
  CHECK_FALSE(is_error_of_heads(facts_of(EvictionFigure::excess_over_exchange)));
  CHECK_FALSE(is_error_of_heads(kLossRow));
}

TEST_CASE("every table is figures under keys", "[tables]") {
  const TempDir dir;
  const auto heads = figures_of(
      results_of(dir / "h", "heads", "layer,kv_head,attn,key\n0,0,1,2\n0,1,5,nan\n"), Table::heads);
  CHECK(heads.keys ==
        std::vector<std::string>{"0,0,attn", "0,0,key", "0,1,attn", "0,1,key", ",,attn", ",,key"});
  CHECK(heads.values[4] == 3);  // the median of 1 and 5
  CHECK(heads.values[5] == 2);  // of those that have one

  const std::string eviction = "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value\n";
  const auto evictions = figures_of(
      results_of(dir / "e", "evictions",
                 eviction + "0,0,\"a,b\",paper,prefill,0.5,4,window,bytes,1\n" +
                     "0,,h2o,paper,prefill,0.5,,window,bytes,2\n,,h2o,paper,prefill,0.5,,window,bytes,2\n"),
      Table::evictions);
  CHECK(evictions.keys == std::vector<std::string>{"0,0,\"a,b\",paper,prefill,0.5,window,bytes",
                                                   "0,,h2o,paper,prefill,0.5,window,bytes",
                                                   ",,h2o,paper,prefill,0.5,window,bytes"});
  // A metric of layers only stands where the file has it.
  const auto row = [](const char* scope, const char* metric) {
    return fmt::format("{},h2o,paper,prefill,0.5,4,future,{},1\n", scope, metric);
  };
  CHECK(figures_of(results_of(dir / "o", "evictions",
                              eviction + row("0,0", "output_error") + row("0,0", "bytes") +
                                  row("0,", "output_error") + row("0,", "loss_step") + row("0,", "bytes")),
                   Table::evictions)
            .keys == std::vector<std::string>{"0,0,h2o,paper,prefill,0.5,future,output_error",
                                              "0,0,h2o,paper,prefill,0.5,future,bytes",
                                              "0,,h2o,paper,prefill,0.5,future,output_error",
                                              "0,,h2o,paper,prefill,0.5,future,loss_step",
                                              "0,,h2o,paper,prefill,0.5,future,bytes"});

  const auto budgets = figures_of(results_of(dir / "b", "budgets",
                                             "layer,kv_head,order,method,sigma,budget,loss,output_error,"
                                             "layer_output_error\n,,o,lu,0.5,8,2,0.1,\n"),
                                  Table::budgets);
  CHECK(budgets.keys ==
        std::vector<std::string>{",,o,lu,0.5,budget", ",,o,lu,0.5,loss", ",,o,lu,0.5,output_error"});
  expect_error(
      [&] { figures_of(results_of(dir / "x", "heads", "layer,kv_head,attn\n0,0,many\n"), Table::heads); },
      {"heads.csv: line 2: expected a number as attn, found 'many'"});
}

TEST_CASE("quantiles interpolate as NumPy's do", "[tables]") {
  std::vector<double> values{7, 1, 3, 10};
  CHECK(quantile(values, 0) == 1);
  CHECK(quantile(values, 0.25) == 2.5);
  CHECK(quantile(values, 0.5) == 5);
  CHECK(quantile(values, 0.75) == 7.75);
  CHECK(quantile(values, 1) == 10);
  values = {4};
  CHECK(quantile(values, 0.25) == 4);
  values.clear();
  CHECK(std::isnan(quantile(values, 0.5)));
}

TEST_CASE("a table over dumps has the figures that several dumps have", "[tables]") {
  const TempDir dir;
  const std::string header = "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value\n";
  const auto row = [](const std::string& head, const std::string& policy, const std::string& kept,
                      const std::string& value) {
    return head + "," + policy + ",paper,prefill,0.5," + kept + ",future,output_error," + value + "\n";
  };
  const auto a = results_of(dir / "a", "evictions",
                            header + row("0,0", "h2o", "4", "1") + row("0,1", "h2o", "4", "nan") +
                                row(",", "h2o", "4", "0.5") + row(",", "only a", "4", "9"));
  const auto b = results_of(dir / "b", "evictions",
                            header + row("0,0", "h2o", "7", "3") + row("0,1", "h2o", "7", "2") +
                                row(",", "h2o", "7", "0.7") + row(",", "late", "7", "1"));
  const auto c = results_of(dir / "c", "evictions", header + row(",", "late", "2", "2"));
  const auto none = results_of(dir / "d", "heads", "layer,kv_head,attn\n");
  TableOverDumps table(Table::evictions);
  for (const ResultReader* results : {&a, &b, &c, &none}) table.add(*results);
  const ResultFolder folder(dir / "r", Json::object(), {}, Existing::refuse);
  CHECK(table.write(folder) == 4);
  const std::string csv = test::read_file(dir / "r/evictions_over_dumps.csv");
  CHECK(
      csv.rfind(
          "layer,kv_head,policy,semantics,phase,budget,rows,metric,n,mean,sd,geometric_mean,ci_low,ci_high\n"
          "0,0,h2o,paper,prefill,0.5,future,output_error,2,2,1.4142135623730951,1.732050807568877",
          0) == 0);
  CHECK(csv.find("\n0,1,h2o,paper,prefill,0.5,future,output_error,1,2,,2,,\n") != std::string::npos);
  CHECK(csv.find("only a") == std::string::npos);
  CHECK(csv.find("\n,,late,paper,prefill,0.5,future,output_error,2,1.5,") != std::string::npos);
  const std::string report = table.report();
  CHECK(report.find("output error over all heads, future rows\n") == 0);
  CHECK(report.find("kept 50 %") != std::string::npos);
  CHECK(report.find("h2o") != std::string::npos);
  CHECK(report.find("0.592") != std::string::npos);
  CHECK(report.find('[') == std::string::npos);  // of two dumps

  TableOverDumps alone(Table::evictions);
  alone.add(a);
  const ResultFolder empty(dir / "alone", Json::object(), {}, Existing::refuse);
  CHECK(alone.write(empty) == 0);
  CHECK_FALSE(std::filesystem::exists(dir / "alone/evictions_over_dumps.csv"));
  CHECK(alone.report().empty());
  const auto twice =
      results_of(dir / "e", "evictions", header + row(",", "h2o", "4", "1") + row(",", "h2o", "5", "1"));
  expect_error([&] { alone.add(twice); },
               {"evictions.csv: expected every row once, found two of ,,h2o,paper"});
}

}  // namespace kvreplay
