#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

// Budgets of several dumps by the profiles of each other, and the oracles that these stand against.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const char* const kHeader = "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error";
const std::string kOver = "layer,kv_head,order,method,sigma,metric";

/// a, b (a shorter prompt) and c.
struct Prompts {
  TempDir temp;
  std::string a = temp / "a", b = temp / "b", c = temp / "c", out = temp / "out";
  Prompts() {
    make_small_dump(a, {"--seed", "1"});
    make_small_dump(b, {"--seed", "2", "--prompt", "47"});
    make_small_dump(c, {"--seed", "3"});
  }

  static ProcessResult run(std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--backend", "cpu"});
    ProcessResult result = succeed(command);
    return result;
  }
};

/// The rows of one method, as they stand in the file.
std::vector<CsvRow> rows_of(const fs::path& folder, const std::string& method) {
  std::vector<CsvRow> rows;
  for (const CsvRow& row : csv_rows(folder / "budgets.csv", kHeader))
    if (row.at("method") == method) rows.push_back(row);
  return rows;
}

std::set<std::string> methods_over(const fs::path& folder) {
  const std::string text = file_text(folder / "budgets_over_dumps.csv");
  std::set<std::string> methods;
  for (const CsvRow& row : csv_rows(folder / "budgets_over_dumps.csv", text.substr(0, text.find('\n'))))
    methods.insert(row.at("method"));
  return methods;
}

}  // namespace

TEST_CASE("several dumps take each other's profiles, as by hand", "[many][budget]") {
  const Prompts prompts;
  const fs::path out = prompts.out;
  const ProcessResult ran =
      Prompts::run({"budget", prompts.a, prompts.b, prompts.c, "--out", prompts.out}, {});
  CHECK(contains(ran.out, "profiles of other prompts: 3 dumps"));
  CHECK(
      contains(ran.out, "duo, lu, lu_without_gap and optimal are oracles: they look at the decoding steps"));
  CHECK(contains(ran.out, "snapkv lu (oracle)"));
  CHECK(contains(ran.out, "snapkv profile of other prompts"));
  // With its order, not behind all.
  CHECK(ran.out.find("snapkv profile of") < ran.out.find("keydiff uniform"));

  const std::map<std::string, std::string> dumps = {{"a", prompts.a}, {"b", prompts.b}, {"c", prompts.c}};
  for (const auto& [name, dump] : dumps) {
    INFO(name);
    std::string files;
    for (const auto& [other, path] : dumps)
      if (other != name)
        files += (files.empty() ? "" : ",") + (out / other / "curves/{order}~lu.npy").string();
    const fs::path hand = prompts.temp / ("hand_" + name), mine = out / "leave_one_out" / name;
    Prompts::run({"budget", dump, "--out", hand, "--method", "uniform", "--profile", files}, {});
    CHECK(rows_of(mine, "profile") == rows_of(hand, "profile"));
    CHECK(rows_of(mine, "profile").size() == csv_rows(mine / "budgets.csv", kHeader).size());
    for (const char* file :
         {"curves/snapkv~profile.npy", "curves/keydiff~profile.npy", "layer_00/kept/snapkv-profile-0.5.npy",
          "layer_01/kept/keydiff-profile-0.8.npy", "maps/snapkv-profile-0.5~output_error.npy"})
      CHECK(file_text(mine / file) == file_text(hand / file));
    CHECK(file_text(mine / "curves/snapkv~profile.npy") != file_text(mine / "curves/keydiff~profile.npy"));
    CHECK_FALSE(fs::exists(mine / "curves/snapkv.npy"));
    // The command's output for the dump is that of a run on this dump only.
    Prompts::run({"budget", dump, "--out", prompts.temp / ("alone_" + name)}, {});
    CHECK(difference(out / name, prompts.temp / ("alone_" + name)).empty());
  }

  // Over the dumps it is a method like the others.
  CHECK(methods_over(out) == std::set<std::string>{"uniform", "pyramid", "ada", "lu", "optimal", "profile"});
  CHECK(Json::parse(file_text(out / "summary.json"))["leave_one_out"] == Json({"a", "b", "c"}));
  const ProcessResult page = run_kvreplay({"report", prompts.out});
  CHECK(page.code == 0);
  const std::string html = file_text(out / "report/index.html");
  CHECK(contains(html, "profile of other prompts"));
  CHECK(contains(html, "lu (oracle)"));
  const auto gains = csv_rows(out / "report/figures/budget-gains.csv", "item,n,mean,ci_low,ci_high,a,b,c");
  std::size_t profiles = 0;
  for (const CsvRow& gain : gains) {
    if (gain.at("item") != "profile") continue;
    ++profiles;
    for (const auto& [name, dump] : dumps) {
      const auto model = [&](const std::vector<CsvRow>& rows) {
        for (const CsvRow& row : rows)
          if (row.at("layer").empty() && row.at("order") == "snapkv" && row.at("sigma") == "0.5")
            return std::stod(row.at("output_error"));
        return -1.0;
      };
      const double share =
          model(rows_of(out / "leave_one_out" / name, "profile")) / model(rows_of(out / name, "uniform"));
      CHECK(std::stod(gain.at(name)) == Approx(1 - share).epsilon(1e-12).margin(1e-15));
    }
  }
  CHECK(profiles == 1);
}

TEST_CASE("profiles of others are made anew where there are more dumps", "[many][budget]") {
  const Prompts prompts;
  const fs::path out = prompts.out, whole = prompts.temp / "whole", without = prompts.temp / "without";
  const std::vector<std::string> all = {"budget", prompts.a, prompts.b, prompts.c, "--out"},
                                 two = {"budget", prompts.a, prompts.b, "--out"};
  const auto into = [](std::vector<std::string> command, const std::string& folder) {
    command.push_back(folder);
    return command;
  };
  Prompts::run(into(two, prompts.out), {});
  const std::string of_two = file_text(out / "leave_one_out/a/curves/snapkv~profile.npy");
  CHECK(npy_of(of_two).data == npy_file(out / "b/curves/snapkv~lu.npy").data);
  const auto single = fs::last_write_time(out / "a/summary.json");
  Prompts::run(into(all, whole), {});
  Prompts::run(into(all, prompts.out), {"--resume"});
  CHECK(difference(out, whole).empty());
  CHECK(file_text(out / "leave_one_out/a/curves/snapkv~profile.npy") != of_two);
  CHECK(fs::last_write_time(out / "a/summary.json") == single);
  CHECK(contains(Prompts::run(into(all, prompts.out), {"--resume"}).out, "already finished"));

  // As a run leaves it that was stopped among the profiles.
  fs::remove(out / "summary.json");
  const auto settings = nlohmann::ordered_json::parse(file_text(whole / "summary.json"));
  const nlohmann::ordered_json state = {{"program", "kvreplay"},
                                        {"schema", 1},
                                        {"records", 2},
                                        {"settings",
                                         {{"kind", settings["kind"]},
                                          {"dumps", settings["dumps"]},
                                          {"leave_one_out", settings["leave_one_out"]}}}};
  fs::create_directory(out / ".kvreplay");
  write_file(out / ".kvreplay/state.json", state.dump());
  fs::remove_all(out / "leave_one_out/c");
  Prompts::run(into(all, prompts.out), {"--resume"});
  CHECK(difference(out, whole).empty());

  // Taken away, and taken up again.
  Prompts::run(into(all, without), {"--profile", "none"});
  CHECK_FALSE(fs::exists(without / "leave_one_out"));
  CHECK(methods_over(without).count("profile") == 0);
  Prompts::run(into(all, prompts.out), {"--resume", "--profile", "none"});
  CHECK(difference(out, without).empty());
  Prompts::run(into(all, prompts.out), {"--resume", "--profile", "leave-one-out"});
  CHECK(difference(out, whole).empty());

  // Begun anew, nothing of the earlier run stays; what somebody else put there does.
  write_file(out / "leave_one_out/c/mine.txt", "mine");
  Prompts::run(into(two, prompts.out), {"--force"});
  CHECK(file_text(out / "leave_one_out/a/curves/snapkv~profile.npy") == of_two);
  CHECK(contents(out / "leave_one_out/c").size() == 1);
}

TEST_CASE("a budget in tokens is one budget over prompts of several lengths", "[many][budget]") {
  const Prompts prompts;
  Prompts::run({"budget", prompts.a, prompts.b, prompts.c, "--out", prompts.out},
               {"--budget", "12", "--order", "attn,keydiff", "--method", "uniform,lu", "--quiet"});
  const std::string text = file_text(fs::path(prompts.out) / "budgets_over_dumps.csv");
  int rows = 0;
  for (const CsvRow& row :
       csv_rows(fs::path(prompts.out) / "budgets_over_dumps.csv", text.substr(0, text.find('\n')))) {
    ++rows;
    CHECK(row.at("sigma") == "12");
    CHECK(row.at("n") == "3");
  }
  CHECK(rows > 0);
  CHECK(fs::exists(fs::path(prompts.out) / "b/layer_00/kept/attn-uniform-12.npy"));
}

TEST_CASE("dumps without budgets take no profiles, and it is said", "[many][budget]") {
  const Prompts prompts;
  const fs::path out = prompts.out;
  const std::string none = prompts.temp / "none", also = prompts.temp / "also";
  make_small_dump(none, {"--seed", "4", "--decode", "0"});
  make_small_dump(also, {"--seed", "5", "--decode", "0"});
  const ProcessResult some =
      Prompts::run({"analyze", prompts.a, none, prompts.c, "--out", prompts.out, "--metrics", "attn"}, {});
  CHECK(contains(some.out,
                 "left out: budgets divided by the profile of the other prompts, of none (it has no "
                 "budgets)"));
  const Json summary = Json::parse(file_text(out / "summary.json"));
  CHECK(summary["leave_one_out"] == Json({"a", "c"}));
  CHECK(summary["left_out"][0]["why"] == "it has no budgets");
  CHECK(npy_file(out / "leave_one_out/a/curves/keydiff~profile.npy").data ==
        npy_file(out / "c/curves/keydiff~lu.npy").data);
  CHECK(run_kvreplay({"report", prompts.out}).code == 0);

  const ProcessResult one = Prompts::run(
      {"analyze", none, prompts.c, also, "--out", prompts.temp / "one", "--metrics", "attn"}, {});
  CHECK(contains(one.out,
                 "left out: budgets divided by the profile of the other prompts (c alone has budgets)"));
  CHECK_FALSE(fs::exists(prompts.temp / "one/leave_one_out"));
  // Nobody asked for budgets: nothing to say.
  const ProcessResult tokens =
      Prompts::run({"analyze", prompts.a, prompts.b, "--only", "tokens", "--metrics", "attn", "--out"},
                   {prompts.temp / "tokens"});
  CHECK_FALSE(contains(tokens.out, "profile"));
  CHECK_FALSE(fs::exists(prompts.temp / "tokens/leave_one_out"));
}

TEST_CASE("profiles of others that cannot be are refused in one line", "[many][budget]") {
  const Prompts prompts;
  const auto budget = [&](const std::string& profile) {
    return refusal({"budget", prompts.a, "--profile", profile}, prompts.out);
  };
  CHECK(contains(budget("leave-one-out"), "--profile: expected several dumps for leave-one-out"));
  CHECK(contains(budget("leave-one-out,x.npy"), "--profile: expected files, or one word, found"));
  CHECK(contains(budget("{order}.npy"), "snapkv.npy"));
  Prompts::run({"budget", prompts.a, "--profile", "none", "--out", prompts.temp / "single"}, {});
  CHECK(rows_of(prompts.temp / "single", "profile").empty());

  const fs::path out = prompts.out, summary = out / "summary.json";
  Prompts::run({"budget", prompts.a, prompts.b, "--out", prompts.out}, {});
  forget_record(prompts.out);
  const std::string whole = file_text(summary);
  Json json = Json::parse(whole);
  json["leave_one_out"] = {"a", "nobody"};
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", prompts.out}), "expected names of the dumps, found \"nobody\""));
  json["leave_one_out"] = "a";
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", prompts.out}), "leave_one_out: expected a list of dumps"));
  json["leave_one_out"] = {"a"};  // so that a mean of two is one of one
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", prompts.out}), "profile,0.5,budget: expected"));
  write_file(summary, whole);
  fs::remove_all(out / "leave_one_out/b");
  CHECK(contains(complaint({"report", prompts.out}), "leave_one_out/b: expected a result folder"));
}

TEST_CASE("a dump's folder never takes the place of the profiles'", "[many][budget]") {
  const Prompts prompts;
  const std::string name = prompts.temp / "leave_one_out";
  make_small_dump(name, {"--seed", "7"});
  Prompts::run({"budget", prompts.a, name, "--out", prompts.out}, {});
  const fs::path out = prompts.out;
  CHECK(fs::exists(out / "dump_leave_one_out/summary.json"));
  CHECK(fs::exists(out / "leave_one_out/dump_leave_one_out/summary.json"));
}

TEST_CASE("oracles are said to be such, and are never called the best", "[budget][report]") {
  const Prompts prompts;
  const fs::path single = prompts.out, other = prompts.temp / "other";
  const ProcessResult ran = Prompts::run(
      {"analyze", prompts.a, "--only", "budget,evict", "--out", prompts.out, "--budget.semantics", "raw"},
      {});
  CHECK(contains(ran.out, "lu (oracle)"));
  CHECK(contains(ran.out, "optimal (oracle)"));
  CHECK(contains(ran.out,
                 "duo, lu, lu_without_gap and optimal are oracles: they look at the decoding steps that they "
                 "are judged on"));
  CHECK(contains(ran.out, "of several prompts in one run each takes"));

  // The picture of all divisions: bold is the lowest of the three that are none, in every column.
  succeed({"report", prompts.out});
  const std::string picture = file_text(single / "report/figures/shares.svg");
  CHECK(contains(picture, ">lu (oracle)<"));
  std::map<std::pair<std::size_t, std::size_t>, double> cells;
  const fs::path numbers = single / "report/figures/shares.csv";
  const std::string header = file_text(numbers).substr(0, file_text(numbers).find('\n')),
                    column_name = header.substr(4, header.rfind(',') - 4);  // "row,...,value"
  const std::vector<std::string> methods = {"uniform", "pyramid", "ada", "lu", "optimal"};
  std::vector<std::string> columns;  // two budgets, each of all heads and of the median head
  for (const CsvRow& row : csv_rows(numbers, header)) {
    const std::string& name = row.at(column_name);
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    const auto method = std::find(methods.begin(), methods.end(), row.at("row")) - methods.begin();
    cells[{method, std::find(columns.begin(), columns.end(), name) - columns.begin()}] =
        std::stod(row.at("value"));
  }
  REQUIRE(columns.size() == 4);
  REQUIRE(cells.size() == 20);
  const std::regex bold("best\" data-number=\"(\\d+)\"");
  std::size_t marked = 0;
  for (std::sregex_iterator at(picture.begin(), picture.end(), bold), end; at != end; ++at, ++marked) {
    const std::size_t cell = std::stoul((*at)[1]), row = cell / 4, column = cell % 4;
    CHECK(row < 3);
    for (std::size_t other_row = 0; other_row < 3; ++other_row)
      CHECK(cells.at({row, column}) <= cells.at({other_row, column}));
  }
  CHECK(marked == 4);

  // Rankings leave oracles out, both of policies and of budget methods.
  Prompts::run({"analyze", prompts.c, "--only", "budget,evict", "--out", other}, {});
  const ProcessResult both = succeed({"compare", single, other, "--json"});
  const Json json = Json::parse(both.out);
  for (const char* table : {"budgets", "evictions"})
    for (const Json& block : json["tables"][table]["main"])
      for (const Json& ranks : block["ranks"]) {
        CHECK(ranks["a"].size() > 2);
        for (const std::string item : ranks["a"])
          CHECK_FALSE((item.ends_with(" lu") || item.ends_with(" optimal") || item.starts_with("oracle")));
      }
  const std::string said = run_kvreplay({"compare", single, other, "--all"}).out;
  CHECK(contains(said, "who wins, oracles apart"));
  CHECK(contains(said, "snapkv lu (oracle), kept 50 %"));
}
