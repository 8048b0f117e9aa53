#include "data/dump.hpp"
#include "data/error.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "viewer/questions/budgets.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

void run_budget(const std::filesystem::path& out, const std::vector<std::string>& more) {
  std::vector<std::string> command{"budget", sample_dump(), "--out", out.string(), "--quiet"};
  command.insert(command.end(), more.begin(), more.end());
  succeed(command);
}

}  // namespace

TEST_CASE("budget results: every division of the folder, sums and curves that agree with each other") {
  const TempDir dir;
  run_budget(dir / "r", {"--order", "snapkv,attn", "--sigma", "0.5,0.9", "--method", "uniform,lu,optimal"});
  const ResultReader tables(dir / "r");
  CHECK_FALSE(why_no_budget_results(tables).has_value());
  const BudgetResults results = read_budgets(tables);
  CHECK(results.normalised);  // in LU-KV's own setting
  REQUIRE(results.divisions.size() == 4);
  CHECK(results.find("snapkv", "0.7") == nullptr);
  for (const char* order : {"snapkv", "attn"}) {
    const BudgetResultCurves curves = read_budget_curves(tables, order);
    REQUIRE(curves.loss.size() == 12);
    // What lu keeps by the profile is what it keeps by the table, to a token of the 896.
    const BudgetResults::Division* half = results.find(order, "0.5");
    REQUIRE(half != nullptr);
    for (const BudgetShare& share : half->methods)
      if (share.method == "lu")
        for (std::size_t h = 0; h < 12; ++h) {
          REQUIRE(curves.kept[h].size() == 99);
          CHECK(curves.kept[h][49] == Approx(static_cast<double>(share.budgets[h]) / 896).margin(1e-6));
        }
    for (const char* sigma : {"0.5", "0.9"}) {
      const BudgetResults::Division* division = results.find(order, sigma);
      REQUIRE(division != nullptr);
      REQUIRE(division->methods.size() == 3);
      for (const BudgetShare& share : division->methods) {
        INFO(order << " " << sigma << " " << share.method);
        REQUIRE(share.budgets.size() == 12);
        CHECK(std::accumulate(share.budgets.begin(), share.budgets.end(), Index{0}) == share.total);
        CHECK(std::accumulate(share.loss.begin(), share.loss.end(), 0.0) == Approx(share.total_loss));
        for (std::size_t h = 0; h < 12; ++h) {
          REQUIRE(curves.loss[h].size() == 897);
          CHECK(curves.loss[h][share.budgets[h]] == Approx(share.loss[h]));
          CHECK(curves.loss[h].back() == 0);
        }
        CHECK(division->methods.back().total_loss <= share.total_loss * (1 + 1e-12));
      }
    }
  }
}

TEST_CASE("budget results: layers that the run left out have no budget and no curve") {
  const TempDir dir;
  run_budget(dir / "r", {"--layers", "1,4", "--order", "snapkv", "--sigma", "0.8", "--method", "uniform",
                         "--normalise", "layer"});
  const ResultReader tables(dir / "r");
  const BudgetResults results = read_budgets(tables);
  CHECK(results.normalised);
  const BudgetShare& share = results.divisions.at(0).methods.at(0);
  const BudgetResultCurves curves = read_budget_curves(tables, "snapkv");
  for (Index layer = 0; layer < 6; ++layer)
    for (Index g = 0; g < 2; ++g) {
      const auto h = static_cast<std::size_t>(layer * 2 + g);
      const bool there = layer == 1 || layer == 4;
      CHECK(std::isnan(share.loss[h]) != there);
      CHECK((share.budgets[h] > 0) == there);
      CHECK(curves.loss[h].empty() != there);
      CHECK(curves.kept[h].empty() != there);
    }
}

TEST_CASE("budget results: what is missing or wrong is one line") {
  const TempDir dir;
  run_budget(dir / "r", {"--order", "snapkv", "--sigma", "0.8", "--method", "uniform"});
  CHECK_THROWS_AS(read_budget_curves(ResultReader(dir / "r"), "attn"), InputError);
  std::string text;
  {
    std::ifstream in(dir / "r/budgets.csv");
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto write = [&](const std::string& table) {
    std::ofstream(dir / "r/budgets.csv", std::ios::trunc) << table;
  };
  std::string beyond = text;
  beyond.replace(beyond.find("\n0,0,"), 5, "\n9,0,");
  write(beyond);
  CHECK_THROWS_AS(read_budgets(ResultReader(dir / "r")), InputError);
  std::string word = text;
  word.replace(word.find(",180,"), 5, ",many,");
  write(word);
  CHECK_THROWS_AS(read_budgets(ResultReader(dir / "r")), InputError);
  std::filesystem::remove(dir / "r/budgets.csv");
  CHECK_THROWS_AS(read_budgets(ResultReader(dir / "r")), InputError);
  std::filesystem::remove(dir / "r/files.csv");  // without it, what is not there was not computed
  CHECK(why_no_budget_results(ResultReader(dir / "r")).has_value());
}
