#include "analysis/results/validation.hpp"

#include "analysis/results/compare.hpp"
#include "analysis/results/comparisons.hpp"
#include "data/atomic_file.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

// Measured losses of the model next to predicted ones. validate.csv has the form that kvvalidate.py writes;
// its numbers are made up.

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

TEST_CASE("what the model lost stands beside what each table predicted", "[validation]") {
  const TempDir temp;
  const fs::path folder = validated_results(temp.path());
  const ResultReader results(folder);
  const Validation validation = read_validation(results);
  REQUIRE(validation.cases.size() == 9);
  CHECK(validation.missing.empty());
  CHECK(validation.finished);

  const Evictions evictions(folder);
  const ValidatedCase& h2o = validation.cases[0];
  CHECK(h2o.policy == "h2o");
  CHECK_FALSE(h2o.is_oracle);
  for (const char* figure : {"output_error", "eviction_loss"})
    CHECK(h2o.predicted_by(figure) == evictions.at(",", "h2o,paper,prefill,0.5", "future", figure));
  CHECK(std::isnan(h2o.predicted_by("loss_row")));
  CHECK(h2o.measured_as(ValidationFigure::kl) == 0.04);
  CHECK(h2o.measured_as(ValidationFigure::same_top1) == 0.75);
  CHECK(std::isnan(h2o.measured_as(ValidationFigure::dnll)));
  CHECK(validation.cases[2].policy == "oracle");
  CHECK(validation.cases[2].is_oracle);

  const auto of = [&](Table table) { return settings_of(validation, table); };
  REQUIRE(of(Table::evictions).size() == 2);  // two budgets
  CHECK(of(Table::evictions)[0].size() == 3);
  REQUIRE(of(Table::budgets).size() == 1);
  const ValidatedCase& lu = *of(Table::budgets)[0][1];
  CHECK(shown_policy(lu) == "attn~lu (oracle)");
  CHECK(setting_text(lu) == "kept 50 %");
  CHECK(lu.predicted_by("output_error") > 0);
  CHECK(of(Table::channels).empty());  // one alone has nothing beside it
  CHECK(validation.cases.back().predicted_by("output_error") > 0);
  CHECK(setting_text(validation.cases.back()) == "pruned 40 %");

  std::vector<std::string> names;
  for (const FigureFacts* const facts : validation.predictors(Table::evictions))
    names.emplace_back(facts->name);
  CHECK(names == std::vector<std::string>{"output_error", "layer_output_error", "eviction_loss"});
}

TEST_CASE("what an engine would lose is a setting of its own", "[validation]") {
  const TempDir temp;
  const fs::path folder = validated_results(temp.path());
  std::string table = file_text(folder / "validate.csv");
  for (std::size_t at = 0; (at = table.find(",kl,", at)) != std::string::npos; at += 8)
    table.insert(at, ",stored");
  for (const char* figure : {",metric", ",dnll", ",same_top1"})
    for (std::size_t at = 0; (at = table.find(figure, at)) != std::string::npos; at += 10)
      table.insert(at, figure == std::string(",metric") ? ",protocol" : ",stored");
  for (const auto& [policy, kl] : {std::pair("h2o", "0.4"), std::pair("streaming", "0.5")})
    table += fmt::format("{},paper,prefill,0.5,30,written,kl,{}\n", policy, kl);
  write_file(folder / "validate.csv", table);
  const ResultReader results(folder);
  const Validation validation = read_validation(results);
  REQUIRE(validation.cases.size() == 11);
  const ValidatedCase& written = validation.cases[9];
  CHECK(written.is_written());
  CHECK(written.measured_as(ValidationFigure::kl) == 0.4);
  CHECK(setting_text(written) == "kept 50 %, written");
  CHECK(written.predicted_by("output_error") == validation.cases[0].predicted_by("output_error"));
  CHECK_FALSE(written.is_beside(validation.cases[0]));
  CHECK(settings_of(validation, Table::evictions).size() == 3);
  std::vector<double> compared;  // figures that are compared are those of stored caches
  for (const MetricEntry& entry : measured_metrics(results, MetricTable(results, Table::evictions)))
    if (entry.metric() == "kl") compared.push_back(entry.model);
  CHECK(compared == std::vector<double>{0.04, 0.2, 0.08, 0.3, 0.001, 0.05});
}

TEST_CASE("whether the model answers stands beside its KL", "[validation]") {
  const TempDir temp;
  const fs::path folder = validated_results(temp.path());
  const auto five = read_validation(ResultReader(folder)).measured();
  CHECK(std::ranges::find(five, ValidationFigure::kl) != five.end());
  CHECK(std::ranges::find(five, ValidationFigure::right) == five.end());
  write_file(folder / "answers.csv",
             "policy,semantics,phase,budget,kept,right,score,first_other,nll,margin,kl_question,kl_answer,"
             "needles_kept,needles_anywhere,answer\n"
             "streaming,paper,prefill,0.5,10,0,0.5,2,1.5,-0.25,0.1,0.4,0.25,1,\"no, \"\"none\"\"\"\n"
             "h2o,paper,prefill,0.5,10,,,2,1.25,-2,,0.3,,,\n"
             "unknown,paper,prefill,0.5,10,1,1,,0,1,0,0,1,1,x\n");
  const Validation validation = read_validation(ResultReader(folder));
  const auto of = [&](const char* policy) {
    return *std::ranges::find_if(
        validation.cases, [&](const auto& one) { return one.policy == policy && one.budget == "0.5"; });
  };
  const ValidatedCase streaming = of("streaming");
  CHECK(streaming.measured_as(ValidationFigure::right) == 0);
  CHECK(streaming.measured_as(ValidationFigure::answer_nll) == 1.5);
  CHECK(streaming.measured_as(ValidationFigure::margin) == -0.25);
  CHECK(streaming.measured_as(ValidationFigure::kl_question) == 0.1);
  CHECK(streaming.measured_as(ValidationFigure::kl_answer) == 0.4);
  CHECK(streaming.measured_as(ValidationFigure::needles_kept) == 0.25);
  CHECK(streaming.measured_as(ValidationFigure::needles_anywhere) == 1);
  CHECK(std::isnan(of("h2o").measured_as(ValidationFigure::right)));  // nobody knows
  CHECK(of("h2o").measured_as(ValidationFigure::kl_answer) == 0.3);
  CHECK(validation.measured().back() == ValidationFigure::needles_anywhere);
  std::vector<std::string> found;
  const ResultReader results(folder);
  for (const MetricEntry& entry : measured_metrics(results, MetricTable(results, Table::evictions)))
    if (joined(entry.key).starts_with("streaming,paper,prefill,0.5"))
      found.push_back(fmt::format("{} {}", entry.metric(), entry.model));
  CHECK(found == std::vector<std::string>{"kl 0.08", "right 0", "kl_answer 0.4"});
  write_file(folder / "answers.csv", "policy,semantics,phase,budget,kept,score\n");
  expect_error([&] { read_validation(ResultReader(folder)); }, {"answers.csv", "right"});
}

TEST_CASE("the KL that was measured is one more figure of its table", "[validation]") {
  const TempDir temp;
  const fs::path folder = validated_results(temp.path());
  const auto measured = [&](Table table) {
    std::vector<std::pair<std::string, double>> found;
    const ResultReader results(folder);
    for (const MetricEntry& entry : measured_metrics(results, MetricTable(results, table))) {
      CHECK_FALSE(entry.any_heads());
      found.emplace_back(joined(entry.key), entry.model);
    }
    return found;
  };
  const auto evictions = measured(Table::evictions);
  REQUIRE(evictions.size() == 6);
  CHECK(evictions[0] == std::pair<std::string, double>("h2o,paper,prefill,0.5,future,kl", 0.04));
  CHECK(measured(Table::budgets) ==
        std::vector<std::pair<std::string, double>>{{"attn,uniform,0.5,kl", 0.03}, {"attn,lu,0.5,kl", 0.02}});
  REQUIRE(measured(Table::channels).size() == 1);
  CHECK(measured(Table::channels)[0].second == 0.06);
  CHECK(measured(Table::agreement).empty());

  // Two prompts in which streaming loses twice as much as h2o.
  Comparisons comparisons;
  comparisons.add_prompt({ResultReader(folder)});
  comparisons.add_prompt({ResultReader(folder)});
  const std::vector<ComparedItems> all = comparisons.all();
  const auto kl = std::find_if(all.begin(), all.end(), [](const ComparedItems& items) {
    return items.table == Table::evictions && items.metric == "kl" && items.budget == "0.5";
  });
  REQUIRE(kl != all.end());
  CHECK(kl->rows == "future");
  const Comparison pair = comparisons_of(*kl).at(0);
  CHECK(pair.left->name == "h2o");
  CHECK(pair.right->name == "streaming");
  CHECK(pair.over.center() == Approx(0.5).epsilon(1e-12));
  CHECK(pair.over.wins == 2);

  // Side by side: two rows of one folder.
  const std::vector<TableComparison> tables =
      compare(ResultReader(folder), {{"policy", "h2o"}}, ResultReader(folder), {{"policy", "streaming"}})
          .tables;
  REQUIRE(tables.size() == 1);
  const auto pivot = std::find_if(tables[0].pivots.begin(), tables[0].pivots.end(),
                                  [](const ComparedPivot& one) { return one.metric == "kl"; });
  REQUIRE(pivot != tables[0].pivots.end());
  REQUIRE(pivot->figures.size() == 2);
  CHECK(pivot->figures[1].a == 0.2);
  CHECK(pivot->figures[1].b == 0.3);

  // Measurements of results that were in this folder before are ignored.
  write_file(folder / "validate.json", R"({"results": "0000", "finished": true})");
  CHECK(measured(Table::evictions).empty());
}

TEST_CASE("a validation of other results is none, and a damaged one is refused", "[validation]") {
  const TempDir temp;
  const fs::path folder = validated_results(temp.path());
  const std::string how = file_text(folder / "validate.json"), table = file_text(folder / "validate.csv");
  const auto missing = [&] { return read_validation(ResultReader(folder)).missing; };

  write_file(folder / "validate.json", R"({"results": "0123", "finished": true})");
  CHECK(contains(missing(), "stood in this folder before"));
  write_file(folder / "validate.json", how);
  write_file(folder / "validate.csv", "policy,semantics,phase,budget,kept,metric,value\n");
  CHECK(contains(missing(), "not measured any case"));
  write_file(folder / "validate.csv", table + "h2o,paper,prefill,0.5,30,nats,1\n");
  expect_error([&] { (void)missing(); }, {"validate.csv", "nats"});
  write_file(folder / "validate.csv", table + "h2o,paper,prefill,0.5,30,kl,much\n");
  expect_error([&] { (void)missing(); }, {"validate.csv", "much"});
  write_file(folder / "validate.csv", table);
  write_file(folder / "validate.json", "[");
  expect_error([&] { (void)missing(); }, {"validate.json"});
  fs::remove(folder / "validate.csv");
  CHECK(contains(missing(), "kvvalidate.py"));
}

TEST_CASE("the order by a figure counts the pairs that the model tells apart", "[validation]") {
  std::vector<ValidatedCase> cases;
  const auto add = [&](double predicted, double kl) {
    ValidatedCase one{Table::evictions, "p", "paper", "prefill", "0.5", "stored", false, {}};
    one.measured.fill(std::nan(""));
    one.measured[0] = kl;
    one.predicted["loss_row"] = predicted;
    cases.push_back(one);
  };
  add(0.01, 0.010);
  add(0.04, 0.020);
  add(0.03, 0.029);  // 1.45 times: not told apart from the one before
  add(0.02, 0.300);  // ordered wrongly against both
  add(0.02, std::nan(""));
  std::vector<const ValidatedCase*> all;
  for (const ValidatedCase& one : cases) all.push_back(&one);
  const OrderByFigure found = order_by("loss_row", all);
  CHECK(found.cases == 4);
  CHECK(found.pairs == 5);
  CHECK(found.in_order == 3);
  CHECK(found.spearman == Approx(0.2));
  CHECK(found.ratio == Approx((1.0 + 0.03 / 0.029) / 2));
  CHECK(order_by("output_error", all).cases == 0);
  CHECK(std::isnan(order_by("output_error", all).spearman));
}

TEST_CASE("a report shows what was measured, and says where nothing was", "[validation][report]") {
  const TempDir temp;
  const fs::path folder = validated_results(temp.path());
  const auto page = [&] {
    succeed({"report", folder});
    return file_text(folder / "report/index.html");
  };
  const std::string measured = page();
  CHECK(contains(measured, "What the model loses"));
  CHECK(contains(measured, "KL measured, nats a step"));
  CHECK(contains(measured, "does a figure order them as the model does?"));
  CHECK(contains(measured, "attn~lu (oracle), kept 50 %"));
  const auto points = csv_rows(folder / "report/figures/measured-evictions.csv",
                               "\"output_error, predicted from the dump\",line,\"KL measured, nats a step\"");
  std::size_t there = 0;
  for (const CsvRow& point : points)
    if (point.at("line") == "h2o" && !point.at("KL measured, nats a step").empty()) {
      ++there;
      CHECK(point.at("KL measured, nats a step") == "0.04");
    }
  CHECK(there == 1);
  fs::remove(folder / "validate.csv");
  CHECK(contains(page(), "Not measured: data/capture/kvvalidate.py"));
}
