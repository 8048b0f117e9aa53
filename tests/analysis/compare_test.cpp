#include "analysis/results/compare.hpp"

#include "data/atomic_file.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <cmath>
#include <filesystem>
#include <string>

namespace kvreplay {
namespace {

using test::expect_error;
using test::TempDir;

std::string summary(const std::string& layers, const std::string& sigma) {
  return R"({"program": "kvreplay", "schema": 1, "dump": {"model": "m", "layers": 4, "n_q": 4, "n_kv": 2, "d": 8,
             "d_v": 8, "d_model": 0, "T": 12, "T_q": 12, "l": 9}, "precision": "f32", "layers": )" +
         layers + R"(, "options": {"evict": {"budgets": )" + sigma + "}}}";
}

/// The same with the options of another analysis.
std::string replaced_options(std::string text) { return text.replace(text.find("evict"), 5, "tokens"); }

const std::string kHeader = "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value\n";
std::string row(const std::string& head, const std::string& policy, const std::string& value,
                const std::string& semantics = "paper") {
  return head + "," + policy + "," + semantics + ",prefill,0.5,4,future,output_error," + value + "\n";
}

ResultReader results(const std::filesystem::path& folder, const std::string& csv,
                     const std::string& layers = "[0]", const std::string& sigma = "[0.5]") {
  write_file(folder / "summary.json", summary(layers, sigma));
  write_file(folder / "evictions.csv", kHeader + csv);
  return ResultReader(folder);
}

const ComparedFigure& figure(const TableComparison& table, const std::string& item) {
  for (const ComparedFigure& one : table.pivots.at(0).figures)
    if (one.item == item) return one;
  FAIL("no figure of " << item);
  return table.pivots[0].figures[0];
}

}  // namespace

TEST_CASE("a folder does not differ from itself", "[compare]") {
  const TempDir dir;
  const auto a = results(dir / "a", row("0,0", "h2o", "1") + row("0,1", "h2o", "nan") +
                                        row(",", "h2o", "inf") + row(",", "tova", "0.25"));
  const FolderComparison same = compare(a, {}, a, {});
  CHECK(same.run.empty());
  REQUIRE(same.tables.size() == 1);
  const TableComparison& table = same.tables[0];
  CHECK(table.rows.size() == 4);
  CHECK(table.differing == 0);
  CHECK_FALSE(table.largest);
  CHECK(table.only_a + table.only_b == 0);
  for (const RankOrder& ranks : table.pivots.at(0).ranks) CHECK(ranks.swaps.empty());
  const std::string text = plain_text(same, 12);
  CHECK(text.find("4 figures in both; no difference") != std::string::npos);
  CHECK(text.find("Run alike") != std::string::npos);
  write_csv(same, dir / "out");
  CHECK(test::read_file(dir / "out/compare_evictions.csv") ==
        "layer,kv_head,policy,semantics,phase,budget,rows,metric,a,b,difference,ratio\n"
        "0,0,h2o,paper,prefill,0.5,future,output_error,1,1,0,1\n"
        "0,1,h2o,paper,prefill,0.5,future,output_error,,,,\n"
        ",,h2o,paper,prefill,0.5,future,output_error,,,0,1\n"
        ",,tova,paper,prefill,0.5,future,output_error,0.25,0.25,0,1\n");
}

TEST_CASE("two folders differ by what their tables say", "[compare]") {
  const TempDir dir;
  const auto a = results(dir / "a",
                         row("0,0", "h2o", "1") + row("0,1", "h2o", "2") + row("1,0", "h2o", "3") +
                             row("1,1", "h2o", "nan") + row(",", "h2o", "2") + row(",", "tova", "4") +
                             row(",", "snapkv", "3") + row(",", "gone", "1"),
                         "[0, 1]");
  const auto b = results(dir / "b",
                         row(",", "tova", "1") + row("0,0", "h2o", "4") + row("0,1", "h2o", "3") +
                             row("1,0", "h2o", "2.5") + row("1,1", "h2o", "7") + row(",", "h2o", "3") +
                             row(",", "snapkv", "3.5"),
                         "[0, 1]", "[0.5, 0.8]");
  const FolderComparison both = compare(a, {}, b, {});
  REQUIRE(both.run.size() == 1);
  CHECK(both.run[0].key == "options.evict.budgets");
  CHECK(both.run[0].a == "[0.5]");
  CHECK(both.run[0].b == "[0.5,0.8]");
  const TableComparison& table = both.tables.at(0);
  CHECK(table.rows.size() == 7);
  CHECK(table.only_a == 1);
  CHECK(table.only_b == 0);
  CHECK(table.differing == 7);
  CHECK(joined(table.keys_of(table.rows[table.largest.value()])) ==
        "0,0,h2o,paper,prefill,0.5,future,output_error");
  const ComparedFigure& h2o = figure(table, "h2o");
  CHECK(h2o.setting == "kept 50 %");
  CHECK(h2o.a == 2);
  CHECK(h2o.b == 3);
  CHECK(h2o.heads.heads == 3);  // one has no value in a
  CHECK(h2o.heads.median_difference == 1);
  CHECK(h2o.heads.largest_difference == 3);
  CHECK(h2o.heads.largest_at == "0.0");
  CHECK(h2o.heads.spearman == -1);
  CHECK(h2o.heads.a[1] == 2);
  CHECK(h2o.heads.b[1] == 3.5);
  const RankOrder& ranks = table.pivots[0].ranks.at(0);
  CHECK(ranks.a == std::vector<std::string>{"h2o", "snapkv", "tova"});
  CHECK(ranks.b == std::vector<std::string>{"tova", "h2o", "snapkv"});
  // The narrower margins: h2o/tova 2, snapkv/tova 1.
  CHECK(ranks.swaps == std::vector<std::pair<std::string, std::string>>{{"h2o", "tova"}, {"snapkv", "tova"}});
  const std::string text = plain_text(both, 2);
  CHECK(text.find("the 2 that differ most, of 3") != std::string::npos);
  CHECK(text.find("2 of 3") != std::string::npos);
  CHECK(text.find("h2o / tova, snapkv / tova") != std::string::npos);
  CHECK(markdown_text(both, 12).find("| h2o, kept 50 % | 2 | 3 | 1 | 1.500 |") != std::string::npos);
  const auto json = json_of(both);
  CHECK(json["tables"]["evictions"]["differing"] == 7);
  CHECK(json["tables"]["evictions"]["main"][0]["ranks"][0]["swaps"][0][1] == "tova");
  // The other way round everything is mirrored.
  const FolderComparison back = compare(b, {}, a, {});
  CHECK(back.tables[0].only_b == 1);
  CHECK(figure(back.tables[0], "h2o").heads.largest_difference == 3);
  CHECK(back.tables[0].pivots[0].ranks[0].swaps.size() == 2);
}

TEST_CASE("other heads are compared by how they are distributed", "[compare]") {
  const TempDir dir;
  const auto a = results(dir / "a", row("0,0", "h2o", "1") + row("0,1", "h2o", "2") + row("0,", "h2o", "8") +
                                        row(",", "h2o", "2"));
  const auto b =
      results(dir / "b",
              row("0,0", "h2o", "5") + row("1,0", "h2o", "6") + row("1,1", "h2o", "9") + row(",", "h2o", "2"),
              "[0, 1]");
  const FolderComparison both = compare(a, {}, b, {});
  CHECK_FALSE(both.same_heads);
  CHECK(both.tables[0].rows.size() == 1);
  const ComparedFigure& h2o = figure(both.tables[0], "h2o");
  CHECK(h2o.heads.heads == 0);
  CHECK(h2o.heads.a == std::array<double, 3>{1.25, 1.5, 1.75});
  CHECK(h2o.heads.b == std::array<double, 3>{5.5, 6, 7.5});
}

TEST_CASE("two semantics of one folder stand side by side", "[compare]") {
  const TempDir dir;
  const auto a =
      results(dir / "a", row(",", "h2o", "1") + row(",", "h2o", "2", "kvpress") + row(",", "tova", "3") +
                             row(",", "tova", "0.5", "kvpress") + row(",", "oracle", "1"));
  const FolderComparison both = compare(a, {{"semantics", "paper"}}, a, {{"semantics", "kvpress"}});
  const TableComparison& table = both.tables.at(0);
  CHECK(table.keys ==
        std::vector<std::string>{"layer", "kv_head", "policy", "phase", "budget", "rows", "metric"});
  CHECK(table.rows.size() == 2);
  CHECK(table.only_a == 1);
  CHECK(figure(table, "h2o").b == 2);
  CHECK(table.pivots[0].ranks[0].swaps.size() == 1);

  const auto fails = [&](const KeyFilter& left, const KeyFilter& right,
                         std::initializer_list<std::string_view> parts) {
    expect_error([&] { compare(a, left, a, right); }, parts);
  };
  fails({{"semantics", "paper"}}, {}, {"right: expected a value of semantics too"});
  fails({}, {{"semantics", "paper"}}, {"left: expected a value of semantics too"});
  fails({{"sematics", "paper"}}, {{"sematics", "x"}},
        {"left: expected a key of a table", "did you mean 'semantics'"});
  fails({{"semantics", "paper"}}, {{"semantics", "oficial"}},
        {"right semantics=oficial: expected a value in ", "evictions.csv, found kvpress, paper"});
  fails({{"score", "attn"}}, {{"score", "key"}},
        {"expected a table in both with the keys of left and right"});
}

TEST_CASE("a comparison begins with who is better and what differs most", "[compare]") {
  const TempDir dir;
  const auto a =
      results(dir / "a", row(",", "h2o", "0.02") + row(",", "tova", "0.01") + row(",", "oracle", "0.001"));
  const auto b =
      results(dir / "b", row(",", "h2o", "0.008") + row(",", "tova", "0.011") + row(",", "oracle", "1"));
  const FolderComparison two = compare(a, {}, b, {});
  const std::string expected =
      "Neither wins: each is better in 1 of 2 main figures, oracles apart; they differ most in output error "
      "over "
      "all heads, future rows, of h2o, kept 50 %: 0.02 in A, 0.008 in B (0.4 times)";
  CHECK(headline_of(two) == expected);
  CHECK(json_of(two)["headline"] == expected);
  const std::string text = plain_text([&](ComparisonPage& page) { describe(two, 9, page); });
  CHECK(text.starts_with("  " + expected + "\n  A: "));
  CHECK(
      text.find("most of all policy oracle, semantics paper, phase prefill, budget 0.5, rows future, metric "
                "output_error: 0.001 and 1") != std::string::npos);
  CHECK(text.find("B / A") != std::string::npos);
  CHECK(headline_of(compare(a, {}, a, {})) == "A and B are equal in all 2 main figures, oracles apart");
  CHECK(headline_of(compare(a, {{"policy", "tova"}}, a, {{"policy", "h2o"}}))
            .starts_with("A is better in 1 of 1"));
}

TEST_CASE("a comparison begins with what it is of, where that is not one dump", "[compare]") {
  const TempDir dir;
  const auto folder = [&](const std::string& name, const std::string& model, int l, int T,
                          const std::string& contents = "") {
    Json json = Json::parse(summary("[0]", "[0.5]"));
    json["dump"]["model"] = model;
    json["dump"]["l"] = l;
    json["dump"]["T"] = json["dump"]["T_q"] = T;
    if (!contents.empty()) json["layer_fingerprints"] = {{"0", contents}};
    write_file(dir / (name + "/summary.json"), json.dump());
    write_file(dir / (name + "/evictions.csv"), kHeader + row(",", "h2o", name == "a" ? "0.2" : "0.1"));
    return ResultReader(dir.path() / name);
  };
  const auto first_line = [](const ResultReader& a, const ResultReader& b) {
    const std::string text = plain_text(compare(a, {}, b, {}), 9);
    return text.substr(0, text.find('\n'));
  };
  const auto a = folder("a", "m / code", 9, 12, "x");
  const std::string better = "B is better in 1 of 1 main figures";
  CHECK(first_line(a, folder("b", "n / code", 7, 12, "y"))
            .starts_with("  A and B are of two models, m and n. " + better));
  CHECK(first_line(a, folder("c", "m / prose", 7, 10, "y"))
            .starts_with("  A and B are of prompts of 9 and 7 tokens. "));
  CHECK(first_line(a, folder("d", "m / code", 9, 10, "x"))
            .starts_with("  A and B are of 12 and 10 positions. "));
  CHECK(first_line(a, folder("e", "m / prose", 9, 12, "y"))
            .starts_with("  A and B are of two dumps, whose numbers differ. "));
  CHECK(first_line(a, folder("f", "m / prose", 9, 12, "x")).starts_with("  " + better));
}

TEST_CASE("figures that are the same though what was asked for is not are pointed out", "[compare]") {
  const TempDir dir;
  const auto budgets = [&](const std::string& name, const std::string& of_4096) {
    std::string rows = row(",", "h2o", "0.02") + row(",", "tova", "0.01");
    for (const std::string& line : {row(",", "h2o", of_4096, "kvpress"), row(",", "tova", "0.01", "kvpress")})
      rows += line;
    return results(dir / name, rows);
  };
  const KeyFilter paper{{"semantics", "paper"}}, kvpress{{"semantics", "kvpress"}};
  const auto same = budgets("a", "0.02"), other = budgets("b", "0.021");
  const std::string expected =
      "All 2 figures are the same to the last digit, though semantics (paper, kvpress) differs: was what "
      "differs used?";
  const FolderComparison found = compare(same, paper, same, kvpress);
  CHECK(suspicion_of(found) == expected);
  CHECK(json_of(found)["suspicion"] == expected);
  CHECK(plain_text(found, 9).find(expected) != std::string::npos);
  CHECK(suspicion_of(compare(other, paper, other, kvpress)).empty());
  CHECK(suspicion_of(compare(same, {}, same, {})).empty());
  CHECK_FALSE(json_of(compare(same, {}, same, {})).contains("suspicion"));
}

TEST_CASE("of correlations and shares differences are told, no ratios", "[compare]") {
  const TempDir dir;
  const auto folder = [&](const std::string& name, const std::string& value) {
    write_file(dir.path() / name / "summary.json", replaced_options(summary("[0]", "[0.5]")));
    write_file(dir.path() / name / "agreement.csv",
               "layer,kv_head,score,reference,rows,window,reserve,metric,value\n0,0,attn,exact_remove,window,"
               "32,0,spearman," +
                   value + "\n");
    return ResultReader(dir.path() / name);
  };
  const FolderComparison two = compare(folder("a", "0.9"), {}, folder("b", "0.5"), {});
  const std::string text = plain_text([&](ComparisonPage& page) { describe(two, 9, page); });
  CHECK(text.find("B - A") != std::string::npos);
  CHECK(text.find("B / A") == std::string::npos);
  CHECK(headline_of(two).starts_with("A is better in 1 of 1 main figures"));
  CHECK(headline_of(two).ends_with("0.9 in A, 0.5 in B (0.4 less)"));
  CHECK(text.find("layer 0, kv_head 0, score attn, reference exact_remove") != std::string::npos);
}

TEST_CASE("folders that share no table or are damaged are refused in one line", "[compare]") {
  const TempDir dir;
  const auto a = results(dir / "a", row(",", "h2o", "1"));
  write_file(dir / "b/summary.json", summary("[0]", "[0.5]"));
  write_file(dir / "b/heads.csv", "layer,kv_head,attn\n0,0,1\n");
  const ResultReader b(dir / "b");
  expect_error([&] { compare(a, {}, b, {}); },
               {"expected a table in both, found evictions in the first, heads in the second"});
  write_file(dir / "b/evictions.csv", kHeader);
  write_file(dir / "b/summary.json", replaced_options(summary("[0]", "[0.5]")));
  const FolderComparison apart = compare(a, {}, ResultReader(dir / "b"), {});
  CHECK(plain_text(apart, 12).find("no figure in both; 1 only in A, 0 only in B") != std::string::npos);
  REQUIRE(apart.run.size() == 2);
  CHECK(apart.run[0].key == "options.evict");
  CHECK(apart.run[0].a == "as asked");
  CHECK(apart.run[0].b == "none");
  CHECK(apart.run[1].key == "options.tokens");
  const auto twice = results(dir / "c", row(",", "h2o", "1") + row(",", "h2o", "2"));
  expect_error([&] { compare(a, {}, twice, {}); },
               {"evictions.csv: expected every row once, found two of ,,h2o"});
  const auto broken = results(dir / "d", row(",", "h2o", "many"));
  expect_error([&] { compare(a, {}, broken, {}); }, {"evictions.csv: line 2: expected a number as value"});
}

}  // namespace kvreplay
