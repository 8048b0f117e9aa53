#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

std::string over_header(const std::string& keys) { return keys + ",n,mean,sd,geometric_mean,ci_low,ci_high"; }

/// dumps/a, dumps/b (a shorter prompt) and other/a.
struct ThreeDumps {
  TempDir temp;
  std::string a = temp / "dumps/a", b = temp / "dumps/b", again = temp / "other/a";
  ThreeDumps() {
    make_small_dump(a, {"--seed", "1"});
    make_small_dump(b, {"--seed", "2", "--prompt", "47"});
    make_small_dump(again, {"--seed", "3"});
  }
};

const std::vector<std::string> kTokens = {"--metrics", "attn,exact_key,exact_remove", "--backend", "cpu"};
}  // namespace

TEST_CASE("several dumps have a folder each, as alone, and their means over all", "[many]") {
  const ThreeDumps dumps;
  const std::string fourth = dumps.temp / "dumps/d";
  make_small_dump(fourth, {"--seed", "4"});
  const std::string out = dumps.temp / "out";
  const ProcessResult ran =
      succeed(joined({"tokens", dumps.a, dumps.b, dumps.again, fourth, "--out", out}, kTokens));
  CHECK(contains(ran.out, "1/4 a: 61 candidates, 9 decoding steps"));
  CHECK(contains(ran.out, "2/4 b: 47 candidates, 9 decoding steps"));
  CHECK(contains(ran.out, "3/4 a-2: 61 candidates"));
  CHECK(contains(ran.out, "Student's t over dumps, not over heads"));
  CHECK(contains(ran.out, "]\n"));
  std::vector<fs::path> singles;
  for (const auto& [name, dump] : {std::pair("a", dumps.a), std::pair("b", dumps.b),
                                   std::pair("a-2", dumps.again), std::pair("d", fourth)}) {
    const fs::path alone = dumps.temp / (std::string("alone_") + name);
    succeed(joined({"tokens", dump, "--out", alone, "--quiet"}, kTokens));
    CHECK(difference(fs::path(out) / name, alone).empty());
    singles.push_back(alone);
  }

  const auto dumps_csv = csv_rows(fs::path(out) / "dumps.csv", "name,model,fingerprint,l,steps");
  REQUIRE(dumps_csv.size() == 4);
  CHECK(dumps_csv[1].at("name") == "b");
  CHECK(dumps_csv[1].at("l") == "47");
  CHECK(dumps_csv[2].at("steps") == "9");
  const auto summary = nlohmann::json::parse(file_text(fs::path(out) / "summary.json"));
  CHECK(summary["schema"] == 1);
  CHECK(summary["kind"] == "over dumps");
  CHECK(summary["dumps"][2]["name"] == "a-2");
  CHECK(summary["dumps"][0]["fingerprint"] == dumps_csv[0].at("fingerprint"));
  CHECK(summary["options"]["tokens"]["window"] == nlohmann::json::array({32}));
  CHECK_FALSE(contains(file_text(fs::path(out) / "summary.json"), dumps.temp.path().string()));

  // Every figure against the single tables, by a formula of the test's own.
  const std::string keys = "layer,kv_head,score,reference,rows,window,reserve,metric";
  std::map<std::string, std::vector<double>> values;
  for (const fs::path& folder : singles)
    for (const CsvRow& row : csv_rows(folder / "agreement.csv", keys + ",value"))
      values[row.at("layer") + row.at("kv_head") + row.at("score") + row.at("reference") + row.at("metric")]
          .push_back(std::stod(row.at("value")));
  std::size_t heads = 0, medians = 0;
  for (const CsvRow& row : csv_rows(fs::path(out) / "agreement_over_dumps.csv", over_header(keys))) {
    if (row.at("layer").empty()) {
      ++medians;
      continue;
    }
    ++heads;
    const auto& these = values.at(row.at("layer") + row.at("kv_head") + row.at("score") +
                                  row.at("reference") + row.at("metric"));
    double sum = 0, squares = 0;
    for (const double value : these) sum += value;
    const double n = static_cast<double>(these.size()), mean = sum / n;
    for (const double value : these) squares += (value - mean) * (value - mean);
    const double sd = std::sqrt(squares / (n - 1)), t = 3.182446305284263;
    CHECK(row.at("n") == std::to_string(these.size()));
    CHECK(std::stod(row.at("sd")) == Approx(sd).epsilon(1e-9).margin(1e-15));
    if (these.size() < 4) CHECK(row.at("ci_low") + row.at("ci_high") == "");
    if (row.at("metric") == "spearman" && std::abs(*std::max_element(these.begin(), these.end())) < 1) {
      double zs = 0, z_squares = 0;
      for (const double value : these) zs += std::atanh(value) / n;
      for (const double value : these) z_squares += std::pow(std::atanh(value) - zs, 2);
      CHECK(std::stod(row.at("mean")) == Approx(std::tanh(zs)).epsilon(1e-9));
      if (these.size() < 4) continue;
      const double half = t * std::sqrt(z_squares / (n - 1)) / std::sqrt(n);
      CHECK(std::stod(row.at("ci_low")) == Approx(std::tanh(zs - half)).epsilon(1e-9));
      CHECK(std::stod(row.at("ci_high")) == Approx(std::tanh(zs + half)).epsilon(1e-9));
      continue;
    }
    CHECK(std::stod(row.at("mean")) == Approx(mean).epsilon(1e-12));
    const bool by_ratio = row.at("metric") == "rel_l1" && *std::min_element(these.begin(), these.end()) > 0;
    CHECK(row.at("geometric_mean").empty() != by_ratio);
    if (by_ratio) {
      double logs = 0, log_squares = 0;
      for (const double value : these) logs += std::log(value) / n;
      for (const double value : these) log_squares += (std::log(value) - logs) * (std::log(value) - logs);
      const double half = t * std::sqrt(log_squares / (n - 1)) / std::sqrt(n);
      CHECK(std::stod(row.at("geometric_mean")) == Approx(std::exp(logs)).epsilon(1e-9));
      if (these.size() < 4) continue;
      CHECK(std::stod(row.at("ci_low")) == Approx(std::exp(logs - half)).epsilon(1e-9));
      CHECK(std::stod(row.at("ci_high")) == Approx(std::exp(logs + half)).epsilon(1e-9));
      continue;
    }
    if (these.size() < 4) continue;
    const double half = t * sd / std::sqrt(n), least = row.at("metric") == "spearman" ? -1 : 0,
                 most = row.at("metric") == "rel_l1" ? HUGE_VAL : 1;
    CHECK(std::stod(row.at("ci_low")) == Approx(std::max(mean - half, least)).epsilon(1e-9).margin(1e-15));
    CHECK(std::stod(row.at("ci_high")) == Approx(std::min(mean + half, most)).epsilon(1e-9).margin(1e-15));
  }
  CHECK(heads == values.size());
  CHECK(medians * 4 == heads);  // two layers of two KV heads
  CHECK(heads > 50);

  // The same once more is the same to the byte; --resume finds nothing left to do.
  const std::string twin = dumps.temp / "twin";
  succeed(joined({"tokens", dumps.a, dumps.b, dumps.again, fourth, "--out", twin, "--quiet"}, kTokens));
  CHECK(difference(out, twin).empty());
  const ProcessResult again = run_kvreplay(
      joined({"tokens", dumps.a, dumps.b, dumps.again, fourth, "--out", out, "--resume"}, kTokens));
  CHECK(again.code == 0);
  CHECK(contains(again.out, "already finished"));
  CHECK(difference(out, twin).empty());
}

TEST_CASE("a run over dumps goes on where it stopped, and takes up more dumps", "[many]") {
  const ThreeDumps dumps;
  const std::string out = dumps.temp / "out", whole = dumps.temp / "whole";
  const auto tokens = [&](std::vector<std::string> paths, const std::string& to,
                          std::vector<std::string> more = {}) {
    return run_kvreplay(
        joined(joined(joined({"tokens"}, std::move(paths)), {"--out", to}), joined(kTokens, more)));
  };
  REQUIRE(tokens({dumps.a, dumps.b, dumps.again}, whole).code == 0);
  REQUIRE(tokens({dumps.a, dumps.b}, out).code == 0);
  const auto single = fs::last_write_time(fs::path(out) / "a/summary.json");
  CHECK(
      contains(tokens({dumps.a, dumps.b}, out).err, "already holds finished results; --force replaces them"));
  CHECK(contains(tokens({dumps.a, dumps.again}, out, {"--resume"}).err,
                 "cannot resume: it was over the dump b too, which is not given"));
  REQUIRE(tokens({dumps.a, dumps.b, dumps.again}, out, {"--resume"}).code == 0);
  CHECK(difference(out, whole).empty());
  CHECK(fs::last_write_time(fs::path(out) / "a/summary.json") == single);
  CHECK(contains(tokens({dumps.a, dumps.b, dumps.again}, out, {"--resume", "--window", "8"}).err,
                 "/a: cannot resume: options.tokens.window was [32], is [8]"));

  // As it is left by a run that was stopped in the second dump.
  fs::remove(fs::path(out) / "summary.json");
  fs::remove(fs::path(out) / "dumps.csv");
  fs::remove_all(fs::path(out) / "b");
  const auto settings = nlohmann::ordered_json::parse(file_text(fs::path(whole) / "summary.json"));
  const nlohmann::ordered_json state = {
      {"program", "kvreplay"},
      {"schema", 1},
      {"records", 2},
      {"settings", {{"kind", settings["kind"]}, {"dumps", settings["dumps"]}}}};
  fs::create_directory(fs::path(out) / ".kvreplay");
  write_file(fs::path(out) / ".kvreplay/state.json", state.dump());
  CHECK(contains(tokens({dumps.a, dumps.b, dumps.again}, out).err,
                 "unfinished results; --resume finishes them"));
  REQUIRE(tokens({dumps.a, dumps.b, dumps.again}, out, {"--resume"}).code == 0);
  CHECK(difference(out, whole).empty());

  // --force begins anew, and nothing of the earlier run stays.
  REQUIRE(tokens({dumps.b, dumps.again}, out, {"--force"}).code == 0);
  CHECK_FALSE(fs::exists(fs::path(out) / "a-2"));
  CHECK(csv_rows(fs::path(out) / "dumps.csv", "name,model,fingerprint,l,steps").size() == 2);
}

TEST_CASE("an interrupted run over dumps is finished by --resume", "[many]") {
  const ThreeDumps dumps;
  const std::string out = dumps.temp / "out", whole = dumps.temp / "whole";
  const std::vector<std::string> run = {"analyze", dumps.a,     dumps.b, dumps.again, "--backend",
                                        "cpu",     "--threads", "1",     "--out"};
  Process process(kvreplay_command(joined(run, {out})));
  REQUIRE(wait_for(fs::path(out) / "a/summary.json", process));
  process.send(SIGINT);
  const ProcessResult stopped = process.wait();
  CHECK((stopped.code == 130 || stopped.code == 0));  // 0: it was done by then
  CHECK_FALSE(has_half_written(out));
  succeed(joined(run, {out, "--resume"}));
  succeed(joined(run, {whole}));
  CHECK(difference(out, whole).empty());
  for (const char* table : {"heads", "agreement", "evictions", "budgets", "channels"})
    CHECK(fs::exists(fs::path(out) / (std::string(table) + "_over_dumps.csv")));
}

TEST_CASE("dumps that do not go together are refused before anything is computed", "[many]") {
  const ThreeDumps dumps;
  const std::string out = dumps.temp / "out", other = dumps.temp / "other/layers";
  const auto refused = [&](std::vector<std::string> paths, const std::string& line) {
    const std::string said = complaint(joined(joined({"tokens"}, std::move(paths)), {"--out", out}));
    INFO(said);
    CHECK(contains(said, line));
    CHECK_FALSE(fs::exists(out));
  };
  make_small_dump(other, {"--layers", "3"});
  refused({dumps.a, other},
          other + ": expected the shape of " + dumps.a + ", 2 layers of 4 query heads on 2 KV heads");
  refused({dumps.a, dumps.a}, "expected every dump once, found it twice");
  refused({dumps.a, dumps.a + "/../a"}, "expected every dump once, found it as " + dumps.a + " too");
  refused({dumps.a, dumps.temp / "nowhere"}, "nowhere: expected a dump folder");
  refused({dumps.a, dumps.b, "--shard", "1/2"}, "--shard: expected one dump, found 2");
  CHECK(
      contains(complaint({"evict", dumps.a, dumps.b, "--out", out, "--kept", "mine=mine.npy"}),
               "--kept: expected an array for each of the 2 dumps: mine=PATH with {dump} in it, or a folder "
               "with one <dump>.npy a dump, found 'mine.npy'"));
  refused({dumps.a, dumps.b, "--prompt-len", "60"}, "prompt length: expected 1 to 56");
  const fs::path manifest = fs::path(dumps.again) / "manifest.json";
  auto json = nlohmann::json::parse(file_text(manifest));
  json["model"] = "another / prompt";
  write_file(manifest, json.dump());
  refused({dumps.a, dumps.again}, dumps.again + ": expected the model of " + dumps.a);
  json.erase("model");
  write_file(manifest, json.dump());
  CHECK(run_kvreplay(joined({"tokens", dumps.a, dumps.again, "--out", out, "--quiet"}, kTokens)).code == 0);
  CHECK(contains(complaint({"compare", out, out + "/a"}),
                 "/a: expected results over several dumps, as the other folder has, found results of one"));
}

TEST_CASE("policies are set against each other within every dump, and so are two folders", "[many]") {
  const ThreeDumps dumps;
  const std::string fourth = dumps.temp / "dumps/d";
  make_small_dump(fourth, {"--seed", "4"});
  const std::string out = dumps.temp / "out", wider = dumps.temp / "wider";
  const auto evict = [&](const std::string& to, const std::string& window) {
    return run_kvreplay({"evict", dumps.a, dumps.b, dumps.again, fourth, "--out", to, "--policy",
                         "h2o,snapkv,oracle_exact", "--keep", "50%,12", "--window", window});
  };
  const ProcessResult ran = evict(out, "8");
  INFO(ran.err << ran.out);
  REQUIRE(ran.code == 0);
  CHECK(contains(ran.out,
                 "output error over all heads, future rows: times what the best loses, prompt by prompt"));
  CHECK(contains(ran.out, "kept 12 tokens: "));
  CHECK(contains(ran.out, "oracle_exact (oracle)"));
  const std::string header =
      "table,left,right,semantics,phase,budget,kept_share,rows,metric,prompts,log_ratio,difference,low,high,"
      "wins,p";
  std::size_t found = 0;
  for (const CsvRow& row : csv_rows(fs::path(out) / "comparisons.csv", header)) {
    if (row.at("left") != "h2o" || row.at("right") != "snapkv" || row.at("metric") != "output_error" ||
        row.at("rows") != "future" || row.at("budget") != "0.5")
      continue;
    ++found;
    double sum = 0;
    int wins = 0;
    for (const char* name : {"a", "b", "a-2", "d"}) {
      const Evictions evictions(fs::path(out) / name);
      const double h2o = evictions.at(",", "h2o,paper,prefill,0.5", "future", "output_error"),
                   snapkv = evictions.at(",", "snapkv,paper,prefill,0.5", "future", "output_error");
      sum += std::log(h2o / snapkv);
      wins += h2o < snapkv;
    }
    CHECK(row.at("prompts") == "4");
    CHECK(row.at("kept_share") == "0.5");
    CHECK(std::stoi(row.at("wins")) == wins);
    CHECK(std::stod(row.at("log_ratio")) == Approx(sum / 4).epsilon(1e-12));
    CHECK((std::stod(row.at("low")) + std::stod(row.at("high"))) / 2 == Approx(sum / 4).epsilon(1e-9));
  }
  CHECK(found == 1);

  // One folder with itself, two of its policies, and two folders.
  const auto compared = [](std::vector<std::string> arguments) {
    const ProcessResult result = run_kvreplay(joined({"compare"}, std::move(arguments)));
    INFO(result.err);
    CHECK(result.code == 0);
    return result.out;
  };
  CHECK(contains(compared({out, out}), "no main figure of the model differs"));
  const std::string two = compared({out, out, "--left", "policy=h2o", "--right", "policy=snapkv"});
  CHECK(contains(two, "4 prompts in both: a, b, a-2, d"));
  CHECK(contains(two, "A better in"));
  REQUIRE(evict(wider, "16").code == 0);
  const std::string page = dumps.temp / "page.html", csv = dumps.temp / "csv";
  CHECK(contains(compared({out, wider, "--html", page, "--out", csv}), "options.evict.window"));
  CHECK(contains(file_text(page), "<table class=\"numbers\">"));
  CHECK(csv_rows(fs::path(csv) / "compare_prompts.csv",
                 "table,metric,item,setting,prompts,a,b,log_ratio,difference,low,high,wins,p")
            .size() == 6);
  const auto json = nlohmann::json::parse(compared({out, wider, "--json"}));
  CHECK(json["figures"].size() == 6);
}

TEST_CASE("compare shows two folders side by side", "[many]") {
  const ThreeDumps dumps;
  const std::string a = dumps.temp / "ra", b = dumps.temp / "rb", out = dumps.temp / "compared";
  const std::vector<std::string> options = {"--policy",  "h2o,snapkv", "--diff", "paper,kvpress",
                                            "--backend", "cpu",        "--quiet"};
  succeed(joined({"evict", dumps.a, "--out", a}, options));
  succeed(joined({"evict", dumps.again, "--out", b}, options));
  const ProcessResult same = run_kvreplay({"compare", a, a});
  CHECK(same.code == 0);
  CHECK(contains(same.out, "Run alike"));
  CHECK(contains(same.out, "figures in both; no difference"));
  CHECK_FALSE(contains(same.out, "differ,"));

  // another prompt of the same shape, and of the same name
  fs::copy(dumps.a, dumps.temp / "prompt", fs::copy_options::recursive);
  std::string keys = file_text(dumps.temp / "prompt/layer_00/k.npy");
  keys[keys.size() - 4] = static_cast<char>(keys[keys.size() - 4] ^ 1);
  write_file(dumps.temp / "prompt/layer_00/k.npy", keys);
  const std::string other = dumps.temp / "r of prompt";
  succeed(joined({"evict", dumps.temp / "prompt", "--out", other}, options));
  const ProcessResult prompts = run_kvreplay({"compare", a, other});
  CHECK_FALSE(contains(prompts.out, "Run alike"));
  CHECK(contains(prompts.out, "dump.contents"));

  const ProcessResult both = succeed({"compare", a, b, "--out", out});
  CHECK(contains(both.out, "dump.fingerprint"));
  CHECK(contains(both.out, "h2o"));
  CHECK(contains(both.out, "best in A"));
  CHECK(fs::exists(fs::path(out) / "compare_evictions.csv"));
  CHECK(fs::exists(fs::path(out) / "compare_diff.csv"));
  CHECK(contains(file_text(fs::path(out) / "compare.md"), "## evictions"));
  CHECK(contains(complaint({"compare", a, b, "--out", out}),
                 "already holds a comparison; --force replaces it"));
  CHECK(run_kvreplay({"compare", a, b, "--out", out, "--force", "--quiet"}).code == 0);
  CHECK(contains(complaint({"compare", a, b, "--out", a}),
                 "expected a new or empty folder, or one of a comparison"));

  const ProcessResult mapped =
      succeed({"compare", a, a, "--left", "semantics=paper", "--right", "semantics=kvpress", "--json"});
  const auto json = nlohmann::json::parse(mapped.out);
  CHECK(json["a"]["filter"]["semantics"] == "paper");
  CHECK(json["tables"].contains("evictions"));
  CHECK(json["run_differences"].empty());

  CHECK(contains(complaint({"compare", a, dumps.temp / "nowhere"}),
                 "expected a result folder, with a summary.json, found no folder"));
  CHECK(contains(complaint({"compare", a}), "B is required"));
  CHECK(contains(complaint({"compare", a, b, "--left", "semantics"}), "--left: expected KEY=VALUE"));
  CHECK(contains(complaint({"compare", a, b, "--left", "semantics=paper"}),
                 "--right: expected a value of semantics too"));
}
