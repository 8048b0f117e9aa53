#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>

#include <map>

// Compensated caches in the pages of `kvreplay report`, checked against compensation.csv.

using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kTable =
    "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value";

/// A result folder of compensated evictions, and its report, made once.
const fs::path& compensated() {
  static const TempDir temp;
  static const fs::path folder = [] {
    make_small_dump(temp / "dump");
    succeed({"evict", temp / "dump", "--out", temp / "r", "--quiet", "--policy",
             "h2o,snapkv,greedy_exact,greedy_leverage", "--budget", "20,40", "--compensate",
             "none,fit,mean,keepkv"});
    report_of(temp / "r");
    return fs::path(temp / "r");
  }();
  return folder;
}

fs::path figure(const std::string& name) { return compensated() / "report" / "figures" / name; }

/// The rows of compensation.csv with these values.
std::vector<CsvRow> rows_with(const CsvRow& wanted) {
  std::vector<CsvRow> found = csv_rows(compensated() / "compensation.csv", kTable);
  std::erase_if(found, [&](const CsvRow& row) {
    for (const auto& [key, value] : wanted)
      if (row.at(key) != value) return true;
    return false;
  });
  return found;
}

double number(const CsvRow& row, const char* key) { return std::stod(row.at(key)); }

}  // namespace

TEST_CASE("a report shows what every method makes up for", "[report][compensate]") {
  const std::string html = file_text(compensated() / "report" / "index.html");
  for (const std::string& picture : pictures_in(html)) REQUIRE(xml_fault(picture).empty());

  // The pictures that show first: the decoding steps, the first budget and policy.
  std::map<std::pair<std::string, std::string>, double> shown;
  for (const CsvRow& row : csv_rows(figure("methods.csv"), "row,who chose the tokens,value"))
    shown[{row.at("row"), row.at("who chose the tokens")}] = number(row, "value");
  const std::vector<CsvRow> errors = rows_with(
      {{"layer", ""}, {"kv_head", ""}, {"budget", "20"}, {"rows", "future"}, {"metric", "output_error"}});
  REQUIRE(errors.size() == 16);
  CHECK(shown.size() == errors.size());
  for (const CsvRow& row : errors)
    CHECK(shown.at({row.at("method"), row.at("policy")}) == number(row, "value"));

  std::size_t terms = 0;
  for (const CsvRow& row : csv_rows(figure("error-split.csv"), "row,column,value")) {
    const std::vector<CsvRow> found = rows_with({{"layer", ""},
                                                 {"kv_head", ""},
                                                 {"policy", "h2o"},
                                                 {"budget", "20"},
                                                 {"rows", "future"},
                                                 {"method", row.at("row")},
                                                 {"metric", row.at("column")}});
    INFO(row.at("row") << " " << row.at("column"));
    if (row.at("value").empty()) {  // what merges keys has no terms
      CHECK(found.empty());
      continue;
    }
    REQUIRE(found.size() == 1);
    CHECK(number(row, "value") == number(found.front(), "value"));
    ++terms;
  }
  CHECK(terms >= 2 * 4 + 2);  // of none and fit all but the bound; of the others the error

  const std::vector<CsvRow> lines =
      csv_rows(figure("compensation-by-budget.csv"), "tokens kept of each head,line,output_error");
  CHECK(lines.size() == 2 * 4);
  for (const CsvRow& row : csv_rows(figure("compensation-by-layer.csv"), "row,layer,value"))
    CHECK(rows_with({{"layer", row.at("layer")},
                     {"kv_head", ""},
                     {"policy", "h2o"},
                     {"budget", "20"},
                     {"rows", "future"},
                     {"method", row.at("row")},
                     {"metric", "output_error"}})
              .front()
              .at("value") == row.at("value"));
}

TEST_CASE("claims about compensation are those of its table", "[report][compensate]") {
  const std::vector<CsvRow> claims = csv_rows(figure("papers-claims.csv"), kClaims + ",prompt");
  std::map<std::string, std::size_t> settings;
  for (const CsvRow& row : claims) ++settings[row.at("id")];
  CHECK(settings["matching-fit"] == 4 * 2);  // policies, budgets
  CHECK(settings["keepkv-merge"] == 4 * 2);
  CHECK(settings["leverage-fit"] == 2);
  CHECK(settings["grkv-values"] == 0);
  CHECK(settings["d2o-merge"] == 0);
  /// The error of one method of a policy over that of another, and the share of layers in which it is less.
  const auto against = [&](const CsvRow& less, const CsvRow& more) {
    CsvRow wanted = {{"rows", "future"}, {"metric", "output_error"}, {"kv_head", ""}, {"budget", "20"}};
    wanted.insert(less.begin(), less.end());
    double ratio = 0, won = 0, differ = 0;
    for (const CsvRow& row : rows_with(wanted)) {
      CsvRow other = row;
      for (const char* free : {"value", "kept"}) other.erase(free);
      for (const auto& [key, value] : more) other[key] = value;
      const double a = number(row, "value"), b = number(rows_with(other).at(0), "value");
      if (row.at("layer").empty())
        ratio = a / b;
      else if (a != b)
        won += a < b, ++differ;
    }
    return std::pair(ratio, won / differ);
  };
  const auto said = [&](const std::string& id, const std::string& setting) {
    for (const CsvRow& row : claims)
      if (row.at("id") == id && row.at("setting") == setting) {
        CHECK(row.at("prompt") == row.at("effect"));
        CHECK(row.at("verdict").empty());
        return std::pair(number(row, "effect"), number(row, "layers"));
      }
    FAIL(id << ": " << setting);
    return std::pair(0.0, 0.0);
  };
  const std::string rest = ", kept 20 tokens, output_error, decoding steps";
  CHECK(said("matching-fit", "fit / none, h2o, prefill" + rest) ==
        against({{"policy", "h2o"}, {"method", "fit"}}, {{"method", "none"}}));
  CHECK(said("keepkv-merge", "keepkv / none, snapkv, prefill" + rest) ==
        against({{"policy", "snapkv"}, {"method", "keepkv"}}, {{"method", "none"}}));
  CHECK(said("leverage-fit", "greedy_leverage / greedy_exact, prefill" + rest) ==
        against({{"method", "fit"}, {"policy", "greedy_leverage"}}, {{"policy", "greedy_exact"}}));
}

TEST_CASE("a report without compensation says what makes some", "[report][compensate]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  succeed({"evict", temp / "dump", "--out", temp / "r", "--quiet", "--policy", "h2o"});
  CHECK(contains(report_of(temp / "r"), "kvreplay evict DUMP --out DIR --compensate none,fit"));
}
