#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kTokens = 61;
const char* const kHeader = "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error";
const std::vector<std::string> kMethods = {"uniform", "pyramid", "ada", "lu", "optimal"};

ProcessResult budget(const std::string& dump, const std::string& out, const std::vector<std::string>& more) {
  ProcessResult result = succeed(joined({"budget", dump, "--out", out, "--precision", "f64"}, more));
  REQUIRE(result.err.empty());
  return result;
}

/// budgets.csv by "order,method,sigma" and then by "layer,kv_head".
std::map<std::string, std::map<std::string, CsvRow>> allocations(const fs::path& folder) {
  std::map<std::string, std::map<std::string, CsvRow>> all;
  for (const CsvRow& row : csv_rows(folder / "budgets.csv", kHeader)) {
    const std::string scope = row.at("layer") + "," + row.at("kv_head");
    const std::string name = row.at("order") + "," + row.at("method") + "," + row.at("sigma");
    INFO(name << " " << scope);
    REQUIRE(all[name].emplace(scope, row).second);
  }
  return all;
}

/// Budgets of the four heads of a small dump.
std::vector<int> budgets_of(const std::map<std::string, CsvRow>& allocation) {
  std::vector<int> budgets;
  for (const char* scope : {"0,0", "0,1", "1,0", "1,1"})
    budgets.push_back(std::stoi(allocation.at(scope).at("budget")));
  return budgets;
}

/// {"L0H0": share, ...} of an allocation, in the file's order.
std::vector<std::pair<std::string, double>> head_budgets(const fs::path& folder, const std::string& name) {
  std::vector<std::pair<std::string, double>> shares;
  const auto json = nlohmann::ordered_json::parse(file_text(folder / "head_budgets" / (name + ".json")));
  for (const auto& [key, share] : json.items()) shares.emplace_back(key, share.get<double>());
  return shares;
}

double number(const std::map<std::string, CsvRow>& allocation, const std::string& scope,
              const std::string& column) {
  return std::stod(allocation.at(scope).at(column));
}

}  // namespace

TEST_CASE("the result folder of budget is as its format says", "[cli][budget]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::vector<std::string> more = GENERATE(
      std::vector<std::string>{"--semantics", "raw"},
      std::vector<std::string>{"--semantics", "raw", "--normalise", "layer"},
      std::vector<std::string>{"--floor", "0.05", "--sinks", "2", "--recent", "4", "--normalise", "layer"});
  const ProcessResult done = budget(dump, temp / "r", more);
  CHECK(contains(done.out, "lu against optimal"));
  const auto all = allocations(temp / "r");
  CHECK(all.size() == 2 * kMethods.size() * 2);
  const int least = more.size() > 4 ? 6 : 0;  // 2 sinks and 4 recent tokens outweigh 5 % of 61

  for (const std::string order : {"snapkv", "keydiff"}) {
    const Npy curves = npy_file(temp / "r/curves" / (order + ".npy"));
    CHECK(curves.descr == "<f8");
    REQUIRE(curves.shape == std::vector<std::size_t>{2, 2, kTokens + 1});
    const std::vector<double> loss = curves.as<double>();
    for (std::size_t head = 0; head < 4; ++head) {
      const auto begin = loss.begin() + static_cast<std::ptrdiff_t>(head * (kTokens + 1));
      CHECK(std::is_sorted(begin, begin + kTokens + 1, std::greater<>()));
      CHECK(*begin > 0);
      CHECK(begin[kTokens] == 0.0);
    }
    if (more.size() > 2)
      for (std::size_t layer = 0; layer < 2; ++layer)  // a layer's importance sums to 1
        CHECK(loss[2 * layer * (kTokens + 1)] + loss[(2 * layer + 1) * (kTokens + 1)] == Approx(1));

    for (const auto& [sigma, total] : {std::pair{"0.5", 122}, {"0.8", 49}}) {
      for (const std::string& method : kMethods) {
        const std::string name = order + "," + method + "," + sigma;
        INFO(name);
        REQUIRE(all.count(name) == 1);
        const auto& rows = all.at(name);
        CHECK(rows.size() == 4 + 2 + 1);
        const std::vector<int> budgets = budgets_of(rows);
        CHECK(std::accumulate(budgets.begin(), budgets.end(), 0) == total);
        CHECK(std::stoi(rows.at(",").at("budget")) == total);
        CHECK(*std::min_element(budgets.begin(), budgets.end()) >= least);
        double sum = 0;
        const std::string file = order + "-" + method + "-" + sigma;
        const std::vector<double> map = npy_file(temp / "r/maps" / (file + "~budget.npy")).as<double>();
        const auto shares = head_budgets(temp / "r", file);
        REQUIRE(shares.size() == 4);
        double all_shares = 0;
        for (std::size_t head = 0; head < 4; ++head) {
          CHECK(shares[head].first == fmt::format("L{}H{}", head / 2, head % 2));
          CHECK(shares[head].second == budgets[head] / static_cast<double>(total));
          all_shares += shares[head].second;
        }
        CHECK(all_shares == Approx(1).epsilon(1e-15));
        for (std::size_t head = 0; head < 4; ++head) {
          const std::string scope = fmt::format("{},{}", head / 2, head % 2);
          const double mine = number(rows, scope, "loss");
          CHECK(mine == loss[head * (kTokens + 1) + static_cast<std::size_t>(budgets[head])]);
          sum += mine;
          CHECK(map[head] == budgets[head]);
          const Npy kept =
              npy_file(temp / "r" / fmt::format("layer_0{}", head / 2) / "kept" / (file + ".npy"));
          CHECK(kept.descr == "|b1");
          REQUIRE(kept.shape == std::vector<std::size_t>{2, kTokens});
          const std::string row = kept.data.substr(head % 2 * kTokens, kTokens);
          CHECK(std::count(row.begin(), row.end(), '\x01') == budgets[head]);
          if (least > 0) CHECK((row.substr(0, 2) + row.substr(kTokens - 4)) == std::string(6, '\x01'));
          CHECK((number(rows, scope, "output_error") == 0) == (budgets[head] == kTokens));
          CHECK(rows.at(scope).at("layer_output_error").empty());
        }
        CHECK(number(rows, ",", "loss") == Approx(sum));
        CHECK(number(rows, "1,", "layer_output_error") > 0);
        if (method == "uniform")
          CHECK(*std::max_element(budgets.begin(), budgets.end()) -
                    *std::min_element(budgets.begin(), budgets.end()) <=
                1);
        CHECK(number(rows, ",", "loss") >=
              number(all.at(order + ",optimal," + sigma), ",", "loss") * (1 - 1e-12));
        if (method != "optimal" && method != "lu" && least == 0)
          CHECK(number(rows, ",", "loss") > number(all.at(order + ",lu," + sigma), ",", "loss"));
      }
    }
  }
  const Npy profile = npy_file(temp / "r/budget_curves.npy");
  CHECK(profile.descr == "<f4");
  CHECK(profile.shape == std::vector<std::size_t>{99, 2, 2});
  CHECK(profile.data == npy_file(temp / "r/curves/snapkv~lu.npy").data);
  const std::vector<float> ratios = profile.as<float>();
  CHECK(*std::min_element(ratios.begin(), ratios.end()) >= 0);
  CHECK(*std::max_element(ratios.begin(), ratios.end()) <= 1);
  for (const auto& [sigma, row] : {std::pair{"0.5", 49}, {"0.8", 79}}) {
    const std::vector<int> lu = budgets_of(all.at(fmt::format("snapkv,lu,{}", sigma)));
    for (std::size_t head = 0; head < 4; ++head)
      CHECK(ratios[static_cast<std::size_t>(4 * row) + head] ==
            Approx(1 - lu[head] / static_cast<double>(kTokens)).epsilon(1e-6));
  }
}

TEST_CASE("head budgets are named by the model's layers", "[cli][budget]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--layers", "3"});
  const std::vector<std::string> only = {"--order", "key", "--method", "lu", "--sigma", "0.5"};
  budget(temp / "dump", temp / "own", joined(only, {"--layers", "0,2"}));
  const auto own = head_budgets(temp / "own", "key-lu-0.5");
  Json manifest = Json::parse(file_text(temp / "dump/manifest.json"));
  manifest["layers"] = {1, 4, 9};
  write_file(temp / "dump/manifest.json", manifest.dump());
  budget(temp / "dump", temp / "model", joined(only, {"--layers", "0,2"}));
  const auto of_model = head_budgets(temp / "model", "key-lu-0.5");
  const std::vector<std::string> names = {"L0H0", "L0H1", "L2H0", "L2H1"},
                                 numbers = {"L1H0", "L1H1", "L9H0", "L9H1"};
  double sum = 0;
  for (std::size_t head = 0; head < 4; ++head) {
    CHECK(own.at(head).first == names[head]);
    CHECK(of_model.at(head).first == numbers[head]);
    CHECK(own[head].second == of_model[head].second);
    sum += own[head].second;
  }
  CHECK(own.size() == 4);
  CHECK(sum == Approx(1).epsilon(1e-15));  // of the layers of the run
}

TEST_CASE("uniform budgets lose what evict measures", "[cli][budget]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--prompt", "60"});
  budget(temp / "dump", temp / "b",
         {"--order", "keydiff,value", "--method", "uniform", "--sigma", "0.5", "--semantics", "raw"});
  succeed({"evict", temp / "dump", "--out", temp / "e", "--precision", "f64", "--policy", "keydiff",
           "--semantics", "kvpress", "--budget", "30"});
  const Evictions csv(temp / "e");
  const auto rows = allocations(temp / "b").at("keydiff,uniform,0.5");
  for (const char* scope : {"0,0", "1,1", ","}) {
    const std::string run = "keydiff,kvpress,prefill,30";
    CHECK(number(rows, scope, "loss") == Approx(csv.at(scope, run, "future", "eviction_loss")));
    CHECK(number(rows, scope, "output_error") == Approx(csv.at(scope, run, "future", "output_error")));
  }
  CHECK(number(rows, "1,", "layer_output_error") ==
        Approx(csv.at("1,", "keydiff,kvpress,prefill,30", "future", "layer_output_error")));
}

TEST_CASE("a profile gives back the budgets that it was made from", "[cli][budget]") {
  const TempDir temp;
  const std::string dump = temp / "dump", file = temp / "one/budget_curves.npy";
  make_small_dump(dump);
  budget(dump, temp / "one",
         {"--order", "snapkv", "--method", "lu", "--sigma", "0.37,0.5,0.8", "--semantics", "raw"});
  budget(dump, temp / "two", {"--order", "keydiff", "--method", "lu", "--semantics", "raw"});
  const std::string other = temp / "two/budget_curves.npy";
  const std::vector<std::string> options = {"--order", "snapkv",       "--method",    "lu",
                                            "--sigma", "0.37,0.5,0.8", "--semantics", "raw"};
  budget(dump, temp / "again", joined(options, {"--profile", file}));
  const auto again = allocations(temp / "again");
  for (const char* sigma : {"0.37", "0.5", "0.8"}) {
    CHECK(budgets_of(again.at(fmt::format("snapkv,profile,{}", sigma))) ==
          budgets_of(again.at(fmt::format("snapkv,lu,{}", sigma))));
  }
  CHECK(npy_file(temp / "again/curves/profile.npy").data == npy_file(file).data);

  budget(dump, temp / "mean", joined(options, {"--profile", file + "," + other}));
  const auto mean = npy_file(temp / "mean/curves/profile.npy").as<float>();
  const auto a = npy_file(file).as<float>(), b = npy_file(other).as<float>();
  REQUIRE(a != b);
  for (std::size_t i = 0; i < mean.size(); ++i)
    REQUIRE(mean[i] == Approx((static_cast<double>(a[i]) + b[i]) / 2).epsilon(1e-6).margin(1e-7));
  const std::vector<int> budgets = budgets_of(allocations(temp / "mean").at("snapkv,profile,0.5"));
  CHECK(std::accumulate(budgets.begin(), budgets.end(), 0) == 122);
  for (std::size_t head = 0; head < 4; ++head)
    CHECK(std::abs(budgets[head] - (1 - mean[49 * 4 + head]) * static_cast<double>(kTokens)) < 1);

  const auto error = [&](const std::string& files) {
    return refusal({"budget", dump, "--profile", files}, temp / "x");
  };
  CHECK(contains(error(""), "--profile: expected names of files, found ''"));
  CHECK(contains(error(temp / "none.npy"), "none.npy"));
  // A run writes files of these names itself.
  for (const char* own : {"budget_curves.npy", "curves/{order}~lu.npy"}) {
    const std::string profile = temp / ("one/" + std::string(own)), before = file_text(file);
    for (const char* how : {"--force", "--resume"}) {
      const ProcessResult result =
          run_kvreplay({"budget", dump, "--out", temp / "one", how, "--profile", profile});
      CHECK(result.code == 2);
      CHECK(contains(result.err, "--out: expected a folder apart from what is read, " + profile));
    }
    CHECK(file_text(file) == before);
  }
  CHECK(contains(error(file + "," + dump + "/layer_00/k.npy"), "k.npy: expected prune ratios"));
  std::vector<float> broken = a;
  broken[4 * 7 + 3] = 1.5f;
  write_file(temp / "broken.npy", npy("<f4", {99, 2, 2}, broken).bytes());
  CHECK(contains(error(temp / "broken.npy"), "prune ratios between 0 and 1, found 1.5 at [7, 1, 1]"));
  write_file(temp / "broken.npy", npy("<f4", {99, 1, 4}, a).bytes());
  CHECK(contains(error(temp / "broken.npy"), "(sigma 0.01 .. 0.99, layers, KV heads), found [99, 1, 4]"));
  write_file(temp / "s.npy", npy("<f8", {2, 2, 61}, std::vector<double>(244, 1)).bytes());
  CHECK(contains(refusal({"budget", dump, "--profile", file, "--order", "profile", "--score",
                          "profile=" + (temp / "s.npy").string()},
                         temp / "x"),
                 "--score: expected another name"));
}

TEST_CASE("a score of the user's is an order", "[cli][budget]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  succeed({"tokens", temp / "dump", "--out", temp / "t", "--precision", "f64", "--metrics", "value"});
  Npy score = npy_file(temp / "t/layer_00/tokens/value.npy");
  score.data += npy_file(temp / "t/layer_01/tokens/value.npy").data;
  score.shape = {2, 2, kTokens};
  write_file(temp / "s.npy", score.bytes());
  budget(temp / "dump", temp / "r",
         {"--order", "value,mine", "--score", "mine=" + (temp / "s.npy").string()});
  CHECK(npy_file(temp / "r/curves/mine.npy").data == npy_file(temp / "r/curves/value.npy").data);
  const auto all = allocations(temp / "r");
  for (const std::string& method : kMethods)
    CHECK(budgets_of(all.at("mine," + method + ",0.8")) == budgets_of(all.at("value," + method + ",0.8")));
}

TEST_CASE("paper is LU-KV's own setting, each order with its own recent tokens", "[cli][budget]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--prompt", "300"});
  const std::vector<std::string> sigmas = {"--sigma", "0.5,0.8"};
  budget(temp / "dump", temp / "paper", joined({"--order", "snapkv,keydiff"}, sigmas));
  // The appendix, option by option, one order at a time.
  const auto set = [&](const std::string& order, const std::string& recent) {
    budget(temp / "dump", temp / order,
           joined({"--semantics", "raw", "--order", order, "--normalise", "layer", "--sinks", "4", "--recent",
                   recent, "--floor", "0.01"},
                  sigmas));
    const auto all = allocations(temp / "paper"), alone = allocations(temp / order);
    for (const auto& [name, rows] : alone) {
      INFO(name);
      CHECK(budgets_of(all.at(name)) == budgets_of(rows));
      for (const char* figure : {"loss", "output_error"})
        CHECK(all.at(name).at(",").at(figure) == rows.at(",").at(figure));
    }
    CHECK(npy_file(temp / "paper/curves" / (order + ".npy")).data ==
          npy_file(temp / order / "curves" / (order + ".npy")).data);
  };
  set("snapkv", "32");
  set("keydiff", "1");
  const Json options = Json::parse(file_text(temp / "paper/summary.json")).at("options").at("budget");
  CHECK(options.at("normalise") == "layer");
  CHECK(options.at("floor") == 0.01);

  // Nothing of it in the bare problem, and one by one the setting can be replaced.
  budget(temp / "dump", temp / "raw", joined({"--semantics", "raw", "--order", "snapkv"}, sigmas));
  budget(temp / "dump", temp / "none",
         joined({"--order", "snapkv", "--normalise", "none", "--sinks", "0", "--recent", "0", "--floor", "0"},
                sigmas));
  CHECK(file_text(temp / "raw/budgets.csv") == file_text(temp / "none/budgets.csv"));
  CHECK(file_text(temp / "raw/budgets.csv") != file_text(temp / "snapkv/budgets.csv"));

  // A budget too small for what should stay is used up by it, and the run says so.
  const ProcessResult done = budget(temp / "dump", temp / "small", {"--order", "snapkv", "--sigma", "0.95"});
  CHECK(
      contains(done.out,
               "more stays in every head (36) than the mean budget of 15.0 tokens at sigma 0.95, cut to it"));
  for (const auto& [name, rows] : allocations(temp / "small"))
    for (const int tokens : budgets_of(rows)) CHECK(tokens == 15);
}

TEST_CASE("an order is named as a policy", "[cli][budget]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--prompt", "200"});
  const std::string name = "snapkv+joint[window=16,pool=avg:5]";
  budget(temp / "dump", temp / "r",
         {"--order", name + ",tova,h2o[recent=3],score:value,value", "--semantics", "raw"});
  const auto all = allocations(temp / "r");
  for (const char* order : {"tova", "h2o[recent=3]", "score:value"})
    CHECK(all.count(std::string(order) + ",uniform,0.5") == 1);
  CHECK(budgets_of(all.at("score:value,lu,0.8")) == budgets_of(all.at("value,lu,0.8")));
  CHECK(fs::exists(temp / "r/curves/score_value.npy"));
  // Evenly divided and with nothing but its own recent tokens, an order keeps what its policy keeps.
  const std::string policy = "snapkv+joint[window=16,pool=none,recent=0]";
  budget(temp / "dump", temp / "b",
         {"--order", policy, "--method", "uniform", "--sigma", "0.5", "--semantics", "raw"});
  succeed({"evict", temp / "dump", "--out", temp / "e", "--precision", "f64", "--policy", policy, "--sigma",
           "0.5"});
  CHECK(npy_file(temp / "b/layer_01/kept" / (policy + "-uniform-0.5.npy")).data ==
        npy_file(temp / "e/layer_01/kept" / (policy + "-paper-prefill-100.npy")).data);
  const auto error = [&](const std::string& order) {
    return refusal({"budget", temp / "dump", "--order", order}, temp / "x");
  };
  CHECK(contains(
      error("streaming"),
      "--order: expected a policy that ranks by a score, found 'streaming', which goes by position"));
  CHECK(contains(error("greedy_exact"), "found 'greedy_exact', which searches"));
  CHECK(contains(error("snapkv+jont"), "--order: unknown score 'jont'; did you mean 'joint'?"));
  CHECK(contains(error("snapkv[windw=3]"), "--order: 'snapkv[windw=3]': unknown option 'windw'"));
}

TEST_CASE("ada and pyramid take their papers' parameters", "[cli][budget]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--prompt", "300"});
  budget(temp / "dump", temp / "r",
         {"--order", "snapkv", "--sigma", "0.7", "--semantics", "raw", "--method",
          "uniform,ada,ada[alpha=0/0.2/1],pyramid,pyramid[beta=1/20]"});
  const auto all = allocations(temp / "r");
  CHECK(all.size() == 8);
  const auto of = [&](const std::string& method) { return budgets_of(all.at("snapkv," + method + ",0.7")); };
  CHECK(of("ada[alpha=0.2]") == of("ada"));
  CHECK(of("pyramid[beta=20]") == of("pyramid"));
  CHECK(of("ada[alpha=1]") == of("uniform"));     // all of its even share is a head's own
  CHECK(of("pyramid[beta=1]") == of("uniform"));  // the last layer has the mean
  CHECK(of("ada[alpha=0]") != of("ada"));
  CHECK(fs::exists(temp / "r/layer_00/kept/snapkv-ada[alpha=0]-0.7.npy"));
  const auto error = [&](const std::string& method) {
    return refusal({"budget", temp / "dump", "--method", method}, temp / "x");
  };
  CHECK(contains(error("lu[alpha=1]"), "--method: 'lu[alpha=1]': alpha has no effect: it is one of ada"));
  CHECK(contains(error("ada[beta=2]"), "beta has no effect: it is one of pyramid"));
  CHECK(contains(error("ada[alpha=1.5]"), "expected a share from 0 to 1, found 1.5"));
  CHECK(contains(error("pyramid[beta=0.5]"), "expected a finite number of at least 1, found 0.5"));
  CHECK(contains(error("ada[gamma=1]"), "unknown option 'gamma'"));
}

TEST_CASE("orders by queries of the prompt need them", "[cli][budget]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  keep_late_queries(dump, 9);
  CHECK(contains(refusal({"budget", dump, "--order", "snapkv"}, temp / "r"),
                 "--order: snapkv is unavailable: the dump holds no query of the prompt"));
  budget(dump, temp / "k", {"--order", "keydiff"});
}

TEST_CASE("analyze writes what evict and budget write", "[cli][budget][evict]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const ProcessResult done = succeed({"analyze", dump, "--out", temp / "a", "--precision", "f64"});
  CHECK(contains(done.out, "Which score follows which error"));
  CHECK(contains(done.out, "output error over all heads"));
  CHECK(contains(done.out, "loss of all heads"));
  budget(dump, temp / "b", {});
  succeed({"evict", dump, "--out", temp / "e", "--precision", "f64"});
  auto all = contents(temp / "a");
  for (const char* part : {"b", "e"})
    for (const auto& [name, bytes] : contents(temp / part))
      if (name != "summary.json" && name != "files.csv" && name != "evictions.csv") {
        INFO(name);
        REQUIRE(all.count(name) == 1);
        CHECK(all.at(name) == bytes);
      }
  CHECK(fs::exists(temp / "a/heads.csv"));
  const std::string more = file_text(temp / "a/evictions.csv");
  std::istringstream few(file_text(temp / "e/evictions.csv"));
  for (std::string line; std::getline(few, line);) REQUIRE(contains(more, line + "\n"));
  succeed({"analyze", dump, "--out", temp / "o", "--precision", "f64", "--only", "budget"});
  CHECK(difference(temp / "o", temp / "b").empty());
}

TEST_CASE("both passes of budget and analyze have the same bytes, interrupted or not",
          "[cli][budget][interrupt]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump, {"--layers", "8", "--prompt", "400", "--decode", "60"});
  const std::string command = GENERATE("budget", "analyze");
  const auto arguments = [&](const std::string& out) {
    return std::vector<std::string>{command, dump, "--out", temp / out, "--precision", "f64", "--quiet"};
  };
  succeed(joined(arguments("whole"), {"--threads", "1"}));
  succeed(joined(arguments("4"), {"--threads", "4"}));
  CHECK(difference(temp / "whole", temp / "4").empty());

  const std::vector<std::string> resumed = joined(arguments("r"), {"--resume"});
  for (const char* layer : {"layer_02", "layer_00.pass2", "layer_03.pass2"}) {
    const fs::path figures = temp / "r/.kvreplay/layers" / (std::string(layer) + ".figures");
    if (fs::exists(figures)) continue;  // the run before came this far until it had stopped
    Process process(kvreplay_command(resumed));
    REQUIRE(wait_for(figures, process));
    process.send(SIGINT);
    const ProcessResult stopped = process.wait();
    INFO(layer << " " << stopped.err);
    CHECK(stopped.code == 130);
    CHECK(lines(stopped.err) == 1);
    CHECK_FALSE(fs::exists(temp / "r/summary.json"));
    CHECK_FALSE(has_half_written(temp / "r"));
  }
  const ProcessResult full = run_kvreplay(resumed, {.folder = {}, .largest_file = 17000});
  INFO(full.err);
  CHECK(full.code == 2);
  CHECK(lines(full.err) == 1);
  CHECK(contains(full.err, "cannot be written"));
  CHECK_FALSE(has_half_written(temp / "r"));
  CHECK(run_kvreplay(resumed).code == 0);
  CHECK(difference(temp / "whole", temp / "r").empty());
}

TEST_CASE("a total is the same however it is said", "[budget]") {
  const TempDir temp;
  make_small_dump(temp / "d");
  const auto table = [&](const char* option, const char* value) {
    const std::string out = temp / (std::string(option) + value);
    const ProcessResult ran = run_kvreplay({"budget", temp / "d", "--out", out, "--method", "uniform,ada",
                                            option, value, "--quiet", "--profile", "none"});
    INFO(ran.err);
    CHECK(ran.code == 0);
    return file_text(fs::path(out) / "budgets.csv");
  };
  const std::string ratios = table("--sigma", "0.8");
  CHECK(table("--keep", "20%") == ratios);
  CHECK(table("--budget", "20%") == ratios);
  const std::string tokens = table("--keep", "12");
  CHECK(table("--budget", "12") == tokens);
  CHECK(contains(tokens, ",,snapkv,uniform,12,48,"));  // four heads
  CHECK(contains(complaint({"budget", temp / "d", "--out", temp / "none", "--keep", "61"}),
                 "--keep: expected 1 to 60 tokens of the prompt's 61, found 61"));
}
