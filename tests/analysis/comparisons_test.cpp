#include "analysis/results/comparisons.hpp"

#include "data/atomic_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::TempDir;

const std::string kEvictions =
    "layer,kv_head,policy,semantics,phase,budget,kept,kept_share,rows,metric,value\n";

ResultReader prompt(const std::filesystem::path& folder, Index l, const std::string& table,
                    const std::string& csv) {
  write_file(
      folder / "summary.json",
      fmt::format(
          R"({{"program": "kvreplay", "schema": 1, "dump": {{"model": "m", "layers": 1, "n_q": 1, "n_kv": 1,
"d": 8, "d_v": 8, "d_model": 0, "T": {}, "T_q": {}, "l": {}}}, "precision": "f32", "layers": [0], "options": {{}}}})",
          l + 2, l + 2, l));
  write_file(folder / (table + ".csv"), csv);
  return ResultReader(folder);
}

std::string row(const std::string& policy, double value, const std::string& budget = "0.8",
                const std::string& kept = "20", const std::string& semantics = "paper",
                const std::string& metric = "output_error") {
  return fmt::format(",,{},{},prefill,{},{},,future,{},{}\n", policy, semantics, budget, kept, metric, value);
}

/// Four prompts in which h2o loses 2, 3, 4 and 3 times what snapkv does, and the oracle half of it.
std::vector<ComparedItems> four_prompts(const TempDir& dir, const std::string& more = "") {
  Comparisons comparisons;
  const std::array snapkv{0.1, 0.02, 0.5, 0.1}, times{2.0, 3.0, 4.0, 3.0};
  for (std::size_t i = 0; i < 4; ++i)
    comparisons.add_prompt({prompt(dir / fmt::format("p{}", i), 100, "evictions",
                                   kEvictions + row("h2o", snapkv[i] * times[i]) + row("snapkv", snapkv[i]) +
                                       row("oracle_exact", snapkv[i] / 2) + more)});
  return comparisons.all();
}

}  // namespace

TEST_CASE("every pair of policies under a setting is compared, prompt by prompt", "[comparisons]") {
  const TempDir dir;
  const std::vector<ComparedItems> all = four_prompts(dir);
  REQUIRE(all.size() == 1);
  CHECK(all[0].metric == "output_error");
  CHECK(all[0].rows == "future");
  CHECK(all[0].kept_share == Approx(0.2));
  const std::vector<Comparison> pairs = comparisons_of(all[0]);
  REQUIRE(pairs.size() == 3);
  CHECK(pairs[0].left->name == "h2o");
  CHECK(pairs[0].right->name == "snapkv");
  CHECK(pairs[0].over.center() == Approx(std::pow(72.0, 0.25)));
  CHECK(pairs[0].over.wins == 0);
  CHECK(pairs[0].over.losses == 4);
  // One pair without an oracle: nothing to adjust; two with one, asked together.
  CHECK(pairs[0].pairs == 1);
  CHECK(pairs[0].p == pairs[0].over.p);
  CHECK(pairs[1].pairs == 2);
  CHECK(pairs[2].right->oracle);
  CHECK(pairs[2].p == 0);  // half in every prompt
  CHECK(verdict(pairs[0]) == "h2o loses 2.91 times what snapkv loses [1.85, 4.58], 4 of 4 prompts");
}

TEST_CASE("a comparison that tells nothing apart says so, and what would", "[comparisons]") {
  const TempDir dir;
  Comparisons comparisons;
  const std::array a{1.0, 2.0, 1.0, 3.0}, b{1.1, 1.7, 1.2, 2.4};
  for (std::size_t i = 0; i < 4; ++i)
    comparisons.add_prompt(
        {prompt(dir / fmt::format("p{}", i), 50, "evictions", kEvictions + row("a", a[i]) + row("b", b[i]))});
  const std::vector<ComparedItems> all = comparisons.all();
  std::vector<Comparison> pairs = comparisons_of(all.at(0));
  foresee(pairs);
  const Comparison& pair = pairs.at(0);
  CHECK_FALSE(pair.told_apart());
  const std::string text = verdict(pair);
  INFO(text);
  CHECK(text.find("2 of 4 prompts; not told apart (about ") != std::string::npos);

  const std::vector<Standing> standings = standings_of(all.at(0));
  REQUIRE(standings.size() == 1);
  CHECK(standings[0].best->name == "b");
  CHECK(verdict(standings[0])
            .find("b loses least of 2; told apart from none of the others, the nearest a (about ") == 0);
}

TEST_CASE("one prompt compares nothing, and no table is written", "[comparisons]") {
  const TempDir dir;
  Comparisons comparisons;
  comparisons.add_prompt({prompt(dir / "p", 50, "evictions", kEvictions + row("a", 1) + row("b", 2))});
  const std::vector<ComparedItems> all = comparisons.all();
  const Comparison pair = comparisons_of(all.at(0)).at(0);
  CHECK(verdict(pair) == "a loses 0.5 times what b loses, 1 of 1 prompt; one prompt tells nothing apart");
  ResultFolder folder(dir / "r", Json::object(), {}, Existing::refuse);
  CHECK(write_comparisons(all, folder) == 0);
  CHECK_FALSE(std::filesystem::exists(dir / "r/comparisons.csv"));
}

TEST_CASE("fewer than four prompts tell nothing apart, and the table has no interval of them",
          "[comparisons]") {
  for (const std::string count : {"two", "three"}) {
    const TempDir dir;
    Comparisons comparisons;
    for (const double hard : count == "two" ? std::vector{1.0, 3.0} : std::vector{1.0, 3.0, 2.0})
      comparisons.add_prompt({prompt(dir / fmt::format("p{}", hard), 50, "evictions",
                                     kEvictions + row("a", 2 * hard) + row("b", hard))});
    const std::vector<ComparedItems> all = comparisons.all();
    const Comparison pair = comparisons_of(all.at(0)).at(0);
    CHECK_FALSE(pair.told_apart());
    CHECK(verdict(pair) == fmt::format("a loses 2 times what b loses, {0} of {0} prompts; {1} prompts tell "
                                       "nothing apart",
                                       count == "two" ? 2 : 3, count));
    CHECK(verdict(standings_of(all.at(0)).at(0)) ==
          "b loses least of 2; told apart from none of the others, the nearest a");
    ResultFolder folder(dir / "r", Json::object(), {}, Existing::refuse);
    CHECK(write_comparisons(all, folder) == 1);
    CHECK(test::read_file(dir / "r/comparisons.csv").ends_with(",0.6931471805599453,,,,0,\n"));
  }
}

TEST_CASE("the number of prompts beside a verdict counts with the verdict's correction", "[comparisons]") {
  const TempDir dir;
  Comparisons comparisons;
  const std::array a{1.0, 2.0, 1.0, 3.0}, b{1.1, 1.7, 1.2, 2.4};
  for (std::size_t i = 0; i < 4; ++i) {
    std::string csv = kEvictions + row("a", a[i]) + row("b", b[i]);
    for (const char* const same : {"c", "d", "e", "f"}) csv += row(same, a[i]);
    comparisons.add_prompt({prompt(dir / fmt::format("p{}", i), 50, "evictions", csv)});
  }
  const std::vector<ComparedItems> all = comparisons.all();
  const std::vector<Standing> standings = standings_of(all.at(0));
  const Comparison& of_five = standings.at(0).others.at(0);
  CHECK(of_five.pairs == 15);  // all pairs of six, five of which are with the best
  const auto alone = prompts_needed(std::vector<Paired>{of_five.over}).at(0);
  std::vector<Paired> pairs(5, of_five.over);
  pairs.resize(15, comparisons_of(all.at(0)).at(1).over);  // a and c, which are alike
  const auto together = prompts_needed(pairs).at(0);
  REQUIRE((alone && together));
  CHECK(*together > *alone);
  CHECK(of_five.needed == together);
  CHECK(verdict(standings[0]).find(fmt::format("(about {} prompts would tell it)", *together)) !=
        std::string::npos);
}

TEST_CASE("the best is one that can be run, and the user's own is set against the best of the others",
          "[comparisons]") {
  const TempDir dir;
  const std::vector<ComparedItems> all =
      four_prompts(dir, row("snapkv+mine", 0.05) + row("score:mine", 0.2) + row("minerals", 9));
  const std::vector<Standing> standings = standings_of(all.at(0));
  REQUIRE(standings.size() == 1);
  CHECK(standings[0].best->name == "snapkv+mine");
  CHECK(standings[0].others.size() == 5);
  const std::vector<Comparison> own = own_against_best(all.at(0), {"mine"});
  REQUIRE(own.size() == 2);
  CHECK(own[0].left->name == "snapkv+mine");
  CHECK(own[0].right->name == "snapkv");
  CHECK(own[0].over.center() == Approx(0.05 / std::pow(0.1 * 0.02 * 0.5 * 0.1, 0.25)));
  CHECK(own[1].left->name == "score:mine");

  const std::vector<StandingTable> tables = main_standings(all);
  REQUIRE(tables.size() == 1);
  CHECK(tables[0].title == "output error over all heads, future rows");
  CHECK(tables[0].headings == std::vector<std::string>{"kept 20 %"});
  const std::string text = text_of(tables[0]);
  INFO(text);
  CHECK(text.find("oracle_exact (oracle)") != std::string::npos);
  CHECK(text.find("snapkv+mine                ") != std::string::npos);
  CHECK(text.find("kept 20 %: snapkv+mine loses least of 5; not told apart from ") != std::string::npos);
}

TEST_CASE("two semantics of a policy are a pair, of two policies only those of one semantics",
          "[comparisons]") {
  const TempDir dir;
  const std::vector<ComparedItems> all =
      four_prompts(dir, row("h2o", 0.3, "0.8", "20", "kvpress") + row("snapkv", 0.2, "0.8", "20", "kvpress"));
  std::vector<std::string> names;
  for (const Comparison& pair : comparisons_of(all.at(0)))
    names.push_back(fmt::format("{} {} {} {}", pair.left->name, pair.left->semantics, pair.right->name,
                                pair.right->semantics));
  CHECK(names == std::vector<std::string>{"h2o paper snapkv paper", "h2o paper oracle_exact paper",
                                          "h2o paper h2o kvpress", "snapkv paper oracle_exact paper",
                                          "snapkv paper snapkv kvpress", "h2o kvpress snapkv kvpress"});
}

TEST_CASE("a kept set of the user's stands with the policies that keep as many tokens in every prompt",
          "[comparisons]") {
  const TempDir dir;
  Comparisons comparisons;
  for (const int i : {1, 2}) {
    const std::string kept = fmt::format("{}", 20 * i);
    comparisons.add_prompt({prompt(dir / fmt::format("p{}", i), 100 * i, "evictions",
                                   kEvictions + row("h2o", 0.3, "0.8", kept) +
                                       row("h2o", 0.1, "0.5", fmt::format("{}", 50 * i)) +
                                       row("mine", 0.2, "", kept, "given"))});
  }
  const std::vector<ComparedItems> all = comparisons.all();
  REQUIRE(all.size() == 2);
  CHECK(all[0].budget == "0.8");
  REQUIRE(all[0].items.size() == 2);
  CHECK(all[0].items[1].name == "mine");
  CHECK(all[1].items.size() == 1);
  CHECK(comparisons_of(all[0]).size() == 1);
}

TEST_CASE("scores are compared by the difference of what their median head reaches", "[comparisons]") {
  const TempDir dir;
  Comparisons comparisons;
  for (const int i : {0, 1}) {
    const auto line = [&](const char* score, const char* reserve, double value) {
      return fmt::format("0,0,{},exact_remove,window,32,{},spearman,{}\n", score, reserve, value);
    };
    comparisons.add_prompt(
        {prompt(dir / fmt::format("p{}", i), 60, "agreement",
                "layer,kv_head,score,reference,rows,window,reserve,metric,value\n" + line("attn", "0", 0.5) +
                    line("joint", "0", 0.7 + 0.1 * i) + line("joint", "32", 0.1))});
  }
  const std::vector<ComparedItems> all = comparisons.all();
  REQUIRE(all.size() == 1);
  CHECK(all[0].metric == "exact_remove~spearman");
  const Comparison pair = comparisons_of(all[0]).at(0);
  CHECK(pair.over.by == PairedBy::difference);
  CHECK(pair.over.mean == Approx(-0.25));
  CHECK(pair.over.losses == 2);
  CHECK(std::isnan(all[0].kept_share));
  CHECK(verdict(pair).find("attn has 0.25 less exact_remove~spearman than joint") == 0);
}

TEST_CASE("how large is large is told in the dump's own nats where it has them", "[comparisons]") {
  CHECK(
      how_large({}).starts_with("how large is large: on three models of 135 to 494 million parameters output "
                                "errors less than 1.1 times "));
  // At one setting: 0.100 and 0.105 are near and in order, 0.105 and 0.111 near and not; 0.3 is far from all
  // three, and in order with two. 0.1 and 0.111 are neither near nor far.
  const std::vector<JudgedCase> cases{{"a", 0.1, 0.01},  {"a", 0.105, 0.03}, {"a", 0.111, 0.02},
                                      {"a", 0.3, 0.025}, {"b", 0.2, 0.5},    {"b", 0.2, 0.6}};
  CHECK(
      how_large(cases) ==
      "how large is large: here output errors below 1.1 times apart have the order of the predicted nats "
      "(loss_step) in 50 % of 2 pairs, above 1.5 in 67 % of 3 pairs; the cases cost 0.01 to 0.6 nats a step");

  const TempDir dir;
  const ResultReader results =
      prompt(dir / "p", 50, "evictions",
             kEvictions + row("h2o", 0.1) + row("h2o", 0.01, "0.8", "20", "paper", "loss_step") +
                 row("tova", 0.4) + row("tova", 0.2, "0.8", "20", "paper", "loss_step") + row("snapkv", 0.2));
  const std::vector<JudgedCase> found = judged_cases(results);
  REQUIRE(found.size() == 2);  // snapkv has no nats
  CHECK(found[0].setting == found[1].setting);
  CHECK(found[0].output_error + found[1].output_error == 0.5);
  CHECK(how_large(found).find(
            "(there is no such pair), above 1.5 in 100 % of 1 pair; the cases cost 0.01 to 0.2") !=
        std::string::npos);
}

TEST_CASE("comparisons.csv has a row a pair", "[comparisons]") {
  const TempDir dir;
  ResultFolder folder(dir / "r", Json::object(), {}, Existing::refuse);
  CHECK(write_comparisons(four_prompts(dir), folder) == 3);
  const std::string csv = test::read_file(dir / "r/comparisons.csv");
  CHECK(
      csv.starts_with(fmt::format("{},{}\nevictions,h2o,snapkv,paper,prefill,0.8,0.2,future,output_error,4,",
                                  kComparisonKeys, kPairedColumns)));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 4);
  CHECK(csv.find("nan") == std::string::npos);
}

}  // namespace kvreplay
