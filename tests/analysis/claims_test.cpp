#include "analysis/claims/claim.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

// Claims of papers: effects are computed, averaged and judged correctly, and the right tables are read.

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

constexpr double kT3 = 3.182446305284263;  // Student's t of 95 % with three degrees of freedom

ClaimFacts claim_of(Effect effect, Better better, double bound) {
  return {.id = "x",
          .paper = "",
          .figure = "",
          .sentence = "",
          .table = Table::evictions,
          .effect = effect,
          .better = better,
          .bound = bound,
          .needs = ""};
}

ClaimEffect interval_of(const ClaimFacts& claim, double low, double high) {
  return {.claim = &claim, .setting = "", .prompts = 3, .mean = (low + high) / 2, .low = low, .high = high};
}

ClaimEffect over(const ClaimFacts& claim, const std::vector<std::pair<double, double>>& sides) {
  std::vector<std::vector<MeasuredClaim>> prompts;
  for (const auto& [left, right] : sides) {
    prompts.emplace_back();
    if (!std::isnan(left)) prompts.back().push_back({&claim, "s", left, right, kNan});
  }
  return claim_effects(prompts).at(0);
}

void add(MetricTable& table, const std::vector<std::pair<std::string, std::string>>& keys,
         std::vector<double> heads, std::vector<double> layers, double model) {
  MetricEntry entry{{std::move(heads), std::move(layers), model}};
  for (const std::string& column : table.key_columns()) {
    const auto at =
        std::find_if(keys.begin(), keys.end(), [&](const auto& key) { return key.first == column; });
    entry.key.push_back(at == keys.end() ? "" : at->second);
  }
  table.add(std::move(entry));
}

/// The measurements of one claim, by its id.
std::vector<MeasuredClaim> measured(const ClaimTables& tables, std::string_view id) {
  std::vector<MeasuredClaim> found = measured_claims(tables);
  std::erase_if(found, [&](const MeasuredClaim& one) { return one.claim->id != id; });
  return found;
}

}  // namespace

TEST_CASE("a verdict is where the interval lies", "[claims]") {
  struct Case {
    Effect effect;
    Better better;
    double bound, low, high;
    Verdict verdict;
    std::string text;
  };
  using enum Effect;
  using enum Better;
  const Case cases[] = {
      {ratio, smaller, 1, 0.7, 0.9, Verdict::holds, "holds"},
      {ratio, smaller, 1, 1.01, 1.2, Verdict::fails, "does not hold"},
      {ratio, smaller, 1, 0.95, 1.031, Verdict::alike, "no difference at this size (up to 5 %)"},
      {ratio, smaller, 1, 1, 1, Verdict::alike, "no difference at this size (up to 0 %)"},
      {ratio, smaller, 1, 0.59, 1.39, Verdict::undecided, "undecided: between 0.59 and 1.39"},
      {difference, larger, 0, 0.01, 0.03, Verdict::holds, "holds"},
      {difference, larger, 0, -0.03, -0.01, Verdict::fails, "does not hold"},
      {difference, larger, 0, -0.01, 0.02, Verdict::alike, "no difference at this size (up to 0.02)"},
      {difference, larger, 0, -0.1, 0.2, Verdict::undecided, "undecided: between -0.100 and +0.200"},
      // As good as something: within a margin, not better.
      {difference, larger, -0.025, -0.02, -0.01, Verdict::holds, "holds"},
      {difference, larger, -0.025, -0.06, -0.03, Verdict::fails, "does not hold"},
      {difference, larger, -0.025, -0.03, 0.01, Verdict::undecided, "undecided: between -0.030 and +0.010"},
      {ratio, smaller, 1.001, 1.0001, 1.0007, Verdict::holds, "holds"},
      {ratio, smaller, 1.001, 1.002, 1.01, Verdict::fails, "does not hold"},
      {correlation, larger, 0.95, 0.96, 0.99, Verdict::holds, "holds"},
      {correlation, larger, 0.95, 0.2, 0.5, Verdict::fails, "does not hold"},
      {correlation, larger, 0.95, 0.94, 0.97, Verdict::undecided, "undecided: between 0.940 and 0.970"},
      {ratio, smaller, 1, kNan, kNan, Verdict::none, ""},
  };
  for (const Case& one : cases) {
    const ClaimFacts claim = claim_of(one.effect, one.better, one.bound);
    const ClaimEffect effect = interval_of(claim, one.low, one.high);
    INFO(claimed_text(claim) << " of " << one.low << " to " << one.high);
    CHECK(effect.verdict() == one.verdict);
    CHECK(effect.verdict_text() == one.text);
  }
  CHECK(claimed_text(claim_of(ratio, smaller, 1)) == "ratio < 1");
  CHECK(claimed_text(claim_of(difference, larger, -0.025)) == "difference > -0.025");
}

TEST_CASE("effects are formed within a prompt and averaged on their scale", "[claims]") {
  const ClaimFacts ratio = claim_of(Effect::ratio, Better::smaller, 1);
  const ClaimEffect halved = over(ratio, {{1, 2}, {10, 40}, {300, 2400}, {1, 4}});  // 1/2, 1/4, 1/8, 1/4
  CHECK(halved.prompts == 4);
  CHECK(halved.dumps == std::vector<double>{0.5, 0.25, 0.125, 0.25});
  CHECK(halved.mean == Approx(0.25));
  const double half = kT3 * std::log(2) * std::sqrt(2.0 / 3) / 2;
  CHECK(halved.low == Approx(0.25 * std::exp(-half)));
  CHECK(halved.high == Approx(0.25 * std::exp(half)));
  CHECK(halved.verdict() == Verdict::holds);
  CHECK(halved.text() == "0.25 [0.102, 0.615]");

  // The other way round the ratio is its inverse, and prompts may come in any order.
  const ClaimEffect doubled = over(ratio, {{2400, 300}, {2, 1}, {4, 1}, {40, 10}});
  CHECK(doubled.mean == Approx(1 / halved.mean));
  CHECK(doubled.low == Approx(1 / halved.high));

  const ClaimFacts difference = claim_of(Effect::difference, Better::larger, 0);
  const ClaimEffect more = over(difference, {{0.5, 0.4}, {0.6, 0.4}, {0.4, 0.1}, {0.3, 0.1}});
  CHECK(more.mean == Approx(0.2));
  CHECK(more.low == Approx(0.2 - kT3 * 0.1 * std::sqrt(2.0 / 3) / 2));

  const ClaimFacts correlation = claim_of(Effect::correlation, Better::larger, 0.95);
  const ClaimEffect rho = over(correlation, {{0.97, 0}});
  CHECK(rho.mean == Approx(0.97));
  CHECK(rho.text() == "0.970");
}

TEST_CASE("fewer than four prompts have effects and no verdict", "[claims]") {
  const ClaimFacts claim = claim_of(Effect::ratio, Better::smaller, 1);
  for (const auto& sides : {std::vector<std::pair<double, double>>{{1, 2}},
                            {{1, 2}, {1, 2}},
                            {{1, 2}, {kNan, 0}, {1, 2}, {1, 2}}}) {
    const ClaimEffect effect = over(claim, sides);
    CHECK(effect.mean == Approx(0.5));
    CHECK(std::isnan(effect.low));
    CHECK(std::isnan(effect.high));
    CHECK(effect.verdict() == Verdict::none);
    CHECK(effect.text() == "0.5");
    CHECK(effect.dumps.size() == sides.size());
  }
  // Equal sides are a ratio of 1, even of zeros; a zero on one side alone has no ratio.
  const ClaimEffect zeros = over(claim, {{0, 0}, {0, 1}, {1, 0}, {2, 2}, {3, 3}, {4, 4}});
  CHECK(zeros.prompts == 4);
  CHECK(zeros.mean == 1);
  CHECK(zeros.verdict() == Verdict::alike);
}

TEST_CASE("every claim says what it is and what decides it, once", "[claims]") {
  std::set<std::string_view> ids;
  for (const ClaimFacts& claim : claim_table()) {
    INFO(claim.id);
    CHECK(ids.insert(claim.id).second);
    for (const std::string_view text : {claim.id, claim.paper, claim.figure, claim.sentence, claim.needs})
      CHECK_FALSE(text.empty());
    CHECK(claim.sides.empty() == !claim.endings.empty());
    CHECK(claim.ended.empty() == claim.endings.empty());
    const bool level = claim.effect == Effect::correlation;
    for (const auto& [left, right] : claim.sides) {
      CHECK_FALSE(left.empty());
      CHECK(right.empty() == level);
    }
  }
}

TEST_CASE("a policy by a score stands against the same policy, options and all", "[claims]") {
  ClaimTables tables{};
  tables.shape.l = 100;
  const auto entry = [&](const std::string& policy, double model, std::vector<double> layers) {
    add(tables.evictions,
        {{"policy", policy},
         {"semantics", "paper"},
         {"phase", "prefill"},
         {"budget", "0.8"},
         {"rows", "future"},
         {"metric", "output_error"}},
        {}, std::move(layers), model);
  };
  entry("h2o", 1, {1, 1, 1, 1});
  entry("h2o+joint", 3, {2, 2, 2, 0.5});
  entry("h2o[window=16,recent=16]", 10, {1, 1, 1, 1});
  entry("h2o+joint[window=16,recent=16]", 5, {0.5, 0.5, 1, 2});
  entry("tova+joint", 7, {});  // without tova
  entry("joint", 7, {});
  const std::vector<MeasuredClaim> found = measured(tables, "obcache-scores");
  REQUIRE(found.size() == 2);
  CHECK(found[0].setting == "h2o+joint / h2o, kept 20 %, output_error, decoding steps");
  CHECK(found[0].left == 3);
  CHECK(found[0].right == 1);
  CHECK(found[0].layers == 0.25);
  CHECK(found[1].setting ==
        "h2o+joint[window=16,recent=16] / h2o[window=16,recent=16], kept 20 %, output_error, decoding steps");
  CHECK(found[1].left == 5);
  CHECK(found[1].right == 10);
  CHECK(found[1].layers == Approx(2.0 / 3));  // one layer is the same
}

TEST_CASE("the recall of two scores is compared over all heads", "[claims]") {
  ClaimTables tables{};
  tables.shape.l = 100;
  const auto entry = [&](const char* score, const char* reserve, std::vector<double> heads) {
    add(tables.agreement,
        {{"score", score},
         {"reference", "oracle_next"},
         {"rows", "window"},
         {"reserve", reserve},
         {"window", "32"},
         {"metric", "recall@40"}},
        std::move(heads), {}, kNan);
  };
  entry("joint", "0", {0.2, 0.4, 0.9});
  entry("exact_joint", "0", {0.3, 0.4, 0.8});
  entry("attn", "0", {0.1, 0.1, kNan});
  entry("attn", "20", {0.5, 0.1, kNan});
  const std::vector<MeasuredClaim> exact = measured(tables, "obcache-2a-exact"),
                                   more = measured(tables, "obcache-2a-attn"),
                                   reserved = measured(tables, "obcache-2b");
  REQUIRE(exact.size() == 1);
  CHECK(exact[0].setting.starts_with("joint - exact_joint"));
  CHECK(exact[0].left == Approx(0.5));
  CHECK(exact[0].right == Approx(0.5));
  REQUIRE(more.size() == 1);
  CHECK(more[0].right == Approx(0.1));
  REQUIRE(reserved.size() == 1);
  CHECK(reserved[0].setting.starts_with("20 reserved - 0 reserved, attn"));
  CHECK(reserved[0].left - reserved[0].right == Approx(0.2));

  // The number of all rows equals the prompt's length, so the setting that prompts share is the requested
  // one.
  if (tables.agreement.distinct("window") == std::vector<std::string>{"32"}) {
    CHECK(contains(reserved[0].setting, "window 32"));
    tables.windows = {"all"};
    CHECK(contains(measured(tables, "obcache-2b")[0].setting, "all rows"));
  }
}

TEST_CASE("what the model truly loses decides claims where it was measured", "[claims]") {
  const TempDir temp;
  const fs::path results = validated_results(temp.path());
  report_of(results.string());
  std::size_t found = 0;
  for (const CsvRow& row : csv_rows(results / "report/figures/papers-claims.csv", kClaims + ",prompt"))
    if (row.at("id") == "lukv-steps" && contains(row.at("setting"), "true KL")) {
      ++found;
      CHECK(row.at("setting") == "lu / uniform, attn, kept 50 %, true KL");
      CHECK(std::stod(row.at("effect")) == Approx(0.02 / 0.03));
      CHECK(row.at("prompt") == row.at("effect"));
      CHECK(row.at("prompts") == "1");
      CHECK(row.at("verdict").empty());
    }
  CHECK(found == 1);
}

TEST_CASE("a claim about divided budgets says what departs from the papers' setting", "[claims]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::pair<std::vector<std::string>, std::string> runs[] = {
      {{}, ""},
      {{"--semantics", "raw"}, ", semantics raw"},
      {{"--sinks", "8", "--normalise", "none"}, ", normalise none, sinks 8"},
      {{"--semantics", "raw", "--recent", "2"}, ", semantics raw, recent 2"}};
  for (const auto& [options, said] : runs) {
    std::vector<std::string> command = {"budget",  temp / "dump", "--out",    temp / "r",
                                        "--force", "--quiet",     "--order",  "keydiff",
                                        "--sigma", "0.5",         "--method", "ada,lu"};
    command.insert(command.end(), options.begin(), options.end());
    succeed(command);
    report_of(temp / "r");
    std::size_t found = 0;
    for (const CsvRow& row :
         csv_rows(fs::path(temp / "r") / "report/figures/papers-claims.csv", kClaims + ",prompt"))
      found += row.at("setting") == "lu / ada, keydiff, kept 50 %, output_error" + said;
    INFO(said);
    CHECK(found == 1);
  }
}
