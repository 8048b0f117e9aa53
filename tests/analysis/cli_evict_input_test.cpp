#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <sys/stat.h>

// User input of `evict`: scores, kept sets, dumps that lack something, mistakes.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

ProcessResult evict(const std::string& dump, const std::string& out, const std::vector<std::string>& more) {
  ProcessResult result = succeed(joined({"evict", dump, "--out", out, "--precision", "f64"}, more));
  return result;
}

std::string left_out(const fs::path& folder) {
  return Json::parse(file_text(folder / "summary.json"))["left_out"].dump();
}

/// [layers, n_kv, l] from a file of each layer.
Npy all_layers(const fs::path& folder, const std::string& file) {
  Npy all = npy_file(folder / "layer_00" / file);
  all.data += npy_file(folder / "layer_01" / file).data;
  all.shape.insert(all.shape.begin(), 2);
  return all;
}

/// The figures of one run, without its names.
std::vector<std::string> figures_of(const Evictions& csv, const std::string& policy) {
  std::vector<std::string> figures;
  for (const CsvRow& row : csv.rows())
    if (row.at("policy") == policy)
      figures.push_back(fmt::format("{},{} {} {} {} {}", row.at("layer"), row.at("kv_head"), row.at("kept"),
                                    row.at("rows"), row.at("metric"), row.at("value")));
  return figures;
}

}  // namespace

TEST_CASE("what is no regular file is refused wherever one is read", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump", results = temp / "r", odd = temp / "odd";
  make_small_dump(dump);
  const std::vector<std::string> run = {"--policy", "h2o", "--budget", "20"};
  evict(dump, results, run);
  const auto refused = [&](const std::vector<std::string>& command, const std::string& file) {
    INFO(fmt::format("{}", fmt::join(command, " ")));
    const ProcessResult done = run_kvreplay(command);
    CHECK(done.code == 2);
    CHECK(lines(done.err) == 1);
    CHECK(contains(done.err, file + ": expected"));
  };
  const auto fifo = [](const fs::path& path) { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); };
  const auto endless = [](const fs::path& path) { fs::create_symlink("/dev/zero", path); };
  const auto folder = [](const fs::path& path) { fs::create_directory(path); };
  for (const std::function<void(const fs::path&)>& make :
       {std::function<void(const fs::path&)>(fifo), {endless}, {folder}}) {
    fs::remove_all(odd);
    make(odd);
    const auto with = [&](const std::vector<std::string>& more) {
      return joined({"evict", dump, "--out", temp / "x"}, more);
    };
    refused({"conform", dump, "--kept", odd, "--as", "h2o", "--budget", "20"}, odd);
    if (!fs::is_directory(odd)) {  // arrays and recipes may be read from a folder
      refused(with({"--recipe", "r=" + odd}), odd);
      refused(with({"--policy", "score:mine", "--score", "mine=" + odd, "--budget", "20"}), odd);
      refused(with({"--policy", "none", "--kept", "mine=" + odd}), odd);
      refused({"budget", dump, "--out", temp / "x", "--profile", odd}, odd);
    }
    for (const char* name : {"manifest.json", "tokens.json", "layer_00/q.npy"}) {
      const fs::path copy = temp / "copy";
      fs::remove_all(copy);
      fs::copy(dump, copy, fs::copy_options::recursive);
      fs::remove(copy / name);
      make(copy / name);
      refused({"info", copy}, copy / name);
    }
    for (const std::string name : {"run.json", "summary.json", "files.csv", "evictions.csv"}) {
      const fs::path copy = temp / "copy";
      fs::remove_all(copy);
      fs::copy(results, copy, fs::copy_options::recursive);
      fs::remove(copy / name);
      make(copy / name);
      if (name != "run.json") {  // two runs are compared without it
        refused({"compare", copy, results}, copy / name);
        refused({"compare", results, copy}, copy / name);
      }
      refused({"report", copy}, copy / name);
      refused({"recommend", copy, "--bytes", "50%"}, copy / name);
    }
  }
  // Links to regular files count as regular files.
  fs::remove_all(temp / "copy");
  fs::copy(dump, temp / "copy", fs::copy_options::recursive);
  fs::remove(temp / "copy/manifest.json");
  fs::create_symlink(fs::path(dump) / "manifest.json", temp / "copy/manifest.json");
  CHECK(run_kvreplay({"info", temp / "copy"}).code == 0);
}

TEST_CASE("a score of the user's ranks like a metric of the same values", "[cli][evict]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  succeed({"tokens", temp / "dump", "--out", temp / "t", "--precision", "f64", "--metrics", "value",
           "--window", "16"});
  write_file(temp / "mine.npy", all_layers(temp / "t", "tokens/value.npy").bytes());
  evict(temp / "dump", temp / "r",
        {"--window", "16", "--budget", "25", "--policy",
         "snapkv+value,snapkv+mine,snapkv,h2o+mine,h2o+value,exchange+mine,exchange+value", "--score",
         "mine=" + (temp / "mine.npy").string()});
  const Evictions csv(temp / "r");
  for (const char* base : {"snapkv", "h2o", "exchange"}) {
    const std::string given = fmt::format("{}+mine", base), metric = fmt::format("{}+value", base);
    CHECK(all_layers(temp / "r", "kept/" + given + "-paper-prefill-25.npy").data ==
          all_layers(temp / "r", "kept/" + metric + "-paper-prefill-25.npy").data);
    CHECK_FALSE(figures_of(csv, given).empty());
    CHECK(figures_of(csv, given) == figures_of(csv, metric));
  }
  CHECK(figures_of(csv, "snapkv+mine") != figures_of(csv, "snapkv"));
}

TEST_CASE("a kept set of the user's is measured like a policy's", "[cli][evict]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  evict(temp / "dump", temp / "p", {"--policy", "h2o,exchange", "--budget", "25"});
  const Npy same = all_layers(temp / "p", "kept/h2o-paper-prefill-25.npy");
  Npy mixed = same;
  mixed.data[0] ^= 1;
  write_file(temp / "same.npy", same.bytes());
  write_file(temp / "mixed.npy", mixed.bytes());
  evict(temp / "dump", temp / "r",
        {"--policy", "h2o,exchange", "--budget", "25", "--kept", "same=" + (temp / "same.npy").string(),
         "--kept", "mixed=" + (temp / "mixed.npy").string()});
  const Evictions csv(temp / "r");
  CHECK_FALSE(figures_of(csv, "same").empty());
  CHECK(figures_of(csv, "same") == figures_of(csv, "h2o"));
  CHECK(csv.has("0,1", "same,given,prefill,", "window", "excess_over_exchange"));
  evict(temp / "dump", temp / "alone",
        {"--policy", "none", "--kept", "same=" + (temp / "same.npy").string()});
  const Evictions alone(temp / "alone");
  CHECK(alone.at("0,1", "same,given,prefill,", "future", "output_error") ==
        csv.at("0,1", "same,given,prefill,", "future", "output_error"));
  CHECK_FALSE(alone.has("0,1", "h2o,", "future", "output_error"));
  CHECK(all_layers(temp / "r", "kept/same-given-prefill-25.npy").data == same.data);
  CHECK(all_layers(temp / "r", "kept/mixed-given-prefill-mixed.npy").data == mixed.data);
  CHECK(csv.at("0,1", "mixed,given,prefill,", "future", "output_error") ==
        csv.at("0,1", "same,given,prefill,", "future", "output_error"));
  CHECK(csv.at("0,0", "mixed,given,prefill,", "future", "output_error") !=
        csv.at("0,0", "same,given,prefill,", "future", "output_error"));
  for (const CsvRow& row : csv.rows())
    if (row.at("policy") == "mixed" && row.at("kv_head").empty())
      CHECK(row.at("kept") == (row.at("layer") == "1" ? "25" : ""));
}

TEST_CASE("what a dump lacks is left out with its reason", "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  SECTION("no output projection") {
    remove_tensor(dump, "wo");
    evict(dump, temp / "r", {"--policy", "h2o", "--budget", "20"});
    CHECK(contains(left_out(temp / "r"), "layer_output_error"));
    CHECK_FALSE(contains(file_text(temp / "r/evictions.csv"), "layer_output_error"));
  }
  SECTION("no decoding steps") {
    const std::vector<std::string> all = {"--prompt-len", "70", "--budget", "20"};
    evict(dump, temp / "r",
          joined(all, {"--policy", "h2o,greedy_exact", "--phase", "prefill,decode,blockwise:16"}));
    CHECK(contains(left_out(temp / "r"), "future rows"));
    CHECK(contains(left_out(temp / "r"), "h2o (paper) in phase decode"));
    CHECK_FALSE(contains(file_text(temp / "r/evictions.csv"), "future"));
    CHECK_FALSE(fs::exists(temp / "r/decode.csv"));
    for (const auto& [option, value] :
         {std::pair{"--policy", "oracle"}, {"--policy", "oracle_exact"}, {"--policy", "snapkv+oracle_next"}})
      CHECK(contains(refusal(joined({"evict", dump, option, value}, all), temp / "x"), "decoding steps"));
    CHECK(contains(refusal(joined({"evict", dump, "--policy", "h2o", "--phase", "decode"}, all), temp / "x"),
                   "nothing to simulate"));
    CHECK(contains(
        refusal(joined({"evict", dump, "--policy", "greedy_exact", "--on", "future"}, all), temp / "x"),
        "greedy_exact is unavailable"));
    succeed({"analyze", dump, "--out", temp / "a", "--prompt-len", "70"});
    for (const char* what : {"\"oracle\"", "\"oracle_exact\"", "\"budget\"", "\"oracle_next\""})
      CHECK(contains(left_out(temp / "a"), what));
    CHECK_FALSE(fs::exists(temp / "a/budgets.csv"));
  }
  SECTION("queries that start within the prompt") {
    keep_late_queries(dump, 21);  // 12 of the prompt
    evict(dump, temp / "r",
          {"--policy", "h2o,keydiff", "--budget", "20", "--phase", "prefill,decode,blockwise:16"});
    CHECK(contains(Json::parse(file_text(temp / "r/summary.json"))["notes"].dump(),
                   "h2o: window 61 clipped to 12"));
    CHECK(contains(left_out(temp / "r"), "in phase blockwise:16"));
    CHECK(contains(refusal({"evict", dump, "--policy", "expected_attention"}, temp / "x"),
                   "expected_attention is unavailable: it needs the queries of the whole prompt"));
  }
  SECTION("queries of some decoding steps only") {
    keep_late_queries(dump, 5);
    evict(dump, temp / "r", {"--policy", "keydiff,oracle", "--budget", "20"});
    CHECK_FALSE(contains(file_text(temp / "r/evictions.csv"), "window"));
    CHECK(contains(refusal({"evict", dump}, temp / "x"), "the dump holds no query of the prompt"));
    succeed({"analyze", dump, "--out", temp / "a"});
    for (const char* what : {"\"h2o\"", "\"budget", "\"attn\""}) CHECK(contains(left_out(temp / "a"), what));
    CHECK(contains(file_text(temp / "a/evictions.csv"), ",keydiff,"));
  }
  SECTION("no rotation") {
    const std::string manifest = file_text(dump + "/manifest.json");
    Json json = Json::parse(manifest);
    json.erase("rope");
    write_file(dump + "/manifest.json", json.dump());
    CHECK(contains(refusal({"evict", dump, "--policy", "expected_attention"}, temp / "x"),
                   "expected_attention is unavailable"));
    succeed({"analyze", dump, "--out", temp / "a", "--only", "evict"});
    CHECK(contains(left_out(temp / "a"), "\"expected_attention\""));
  }
}

TEST_CASE("mistakes in the user's arrays name the file, and leave no folder", "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "dump", file = temp / "mine.npy";
  make_small_dump(dump);
  const auto error = [&](const std::string& option, const std::string& item) {
    return refusal({"evict", dump, "--policy", "snapkv", option, item}, temp / "r");
  };
  const std::vector<double> ones(2 * 2 * 61, 1.0);
  const std::vector<std::uint8_t> trues(2 * 2 * 61, 1);
  const Npy scores = npy("<f8", {2, 2, 61}, ones), kept = npy("|b1", {2, 2, 61}, trues);
  for (const char* option : {"--score", "--kept"}) {
    for (const char* item : {"mine", "mine=", "=mine.npy"})
      CHECK(
          contains(error(option, item), fmt::format("{}: expected name=FILE.npy, found '{}'", option, item)));
    CHECK(contains(error(option, "a/b=" + file), "'a/b'"));
    CHECK(contains(error(option, "mine=" + file), file));
    write_file(file, "no array");
    CHECK(contains(error(option, "mine=" + file), file + ": expected a .npy array"));
    write_file(file, (option == std::string("--score") ? scores : kept).bytes());
    for (const char* taken : {"joint", "snapkv"})
      CHECK(contains(error(option, taken + ("=" + file)), "which is taken"));
    write_file(file, npy("<f8", {2, 61, 2}, ones).bytes());
    CHECK(contains(error(option, "mine=" + file), file + ": expected "));
    const std::string whole = scores.bytes();
    write_file(file, whole.substr(0, whole.size() - 8));
    CHECK(contains(error(option, "mine=" + file), file));
    fs::remove(file);
  }
  write_file(file, npy("<f8", {2, 61, 2}, ones).bytes());
  CHECK(contains(error("--score", "mine=" + file), "expected shape [2, 2, 61], found shape [2, 61, 2]"));
  write_file(file, npy("<c8", {2, 2, 61}, ones).bytes());
  CHECK(contains(error("--score", "mine=" + file), "'<c8'"));
  std::vector<double> broken = ones;
  broken[70] = std::numeric_limits<double>::quiet_NaN();
  write_file(file, npy("<f8", {2, 2, 61}, broken).bytes());
  CHECK(contains(error("--score", "mine=" + file), "NaN at layer 0, head 1, position 9"));
  write_file(file, scores.bytes());
  CHECK(contains(error("--kept", "mine=" + file), "expected booleans"));
  CHECK(contains(refusal({"evict", dump, "--policy", "mine", "--score", "mine=" + file}, temp / "r"),
                 "a score is used as score:mine, or snapkv+mine"));
}

TEST_CASE("what differs from the run that is to go on is shown, wherever in a list it stands",
          "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_small_dump(dump);
  write_file(temp / "s.npy", npy("<f8", {2, 2, 61}, std::vector<double>(244, 1)).bytes());
  const std::string most = "h2o+value,h2o+key,h2o+joint,h2o+caote,tova";
  const std::vector<std::string> asked = {"evict", dump, "--out", out};
  succeed(joined(asked, {"--policy", "h2o," + most + ",snapkv", "--budget", "9"}));
  const auto complaint = [&](const std::string& policies, const std::vector<std::string>& more) {
    const ProcessResult result =
        run_kvreplay(joined(joined(asked, {"--resume", "--policy", policies}), more));
    CHECK(result.code == 2);
    CHECK(lines(result.err) == 1);
    return result.err;
  };
  const std::vector<std::string> nine = {"--budget", "9"};
  for (const auto& [policies, was, is] :
       {std::tuple{"h2o," + most + ",snapkv,knorm", "snapkv\"]", "\"knorm\"]"},
        {"h2o," + most + ",keydiff", "\"snapkv\"]", "\"keydiff\"]"},
        {"streaming," + most + ",snapkv", "[\"h2o\"", "[\"streaming\""},
        {"h2o," + most, "snapkv\"]", "tova\"]"}}) {
    const std::string said = complaint(policies, nine);
    INFO(said);
    CHECK(contains(said, "cannot resume: options.evict.policies was "));
    const std::size_t middle = said.find(", is ");
    REQUIRE(middle != std::string::npos);
    CHECK(contains(said.substr(0, middle), was));
    CHECK(contains(said.substr(middle), is));
  }
  const std::string same = "h2o," + most + ",snapkv";
  CHECK(contains(complaint(same, {"--budget", "9,8"}), "options.evict.budgets was [9], is [9,8]"));
  CHECK(contains(complaint(same, {"--budget", "9", "--window", "3"}), "window was not given, is 3"));
  CHECK(
      contains(complaint(same, {"--budget", "9", "--per-query-head"}), "per_query_head was false, is true"));
  CHECK(contains(complaint(same, {"--budget", "9", "--precision", "f64"}), "precision was f32, is f64"));
  CHECK(contains(complaint(same, {"--budget", "9", "--layers", "1"}), "layers was [0,1], is [1]"));
  CHECK(contains(complaint(same, {"--budget", "9", "--prompt-len", "60"}), "dump.l was 61, is 60"));
  CHECK(contains(complaint(same + ",score:a", {"--budget", "9", "--score", "a=" + (temp / "s.npy").string()}),
                 "options.evict.policies was"));
}

TEST_CASE("evictions have the same bytes for any number of threads, and after an interruption",
          "[cli][evict][interrupt]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump, {"--layers", "6", "--prompt", "300"});
  const std::vector<std::string> options = {"--policy", "h2o,snapkv+caote,keydiff,greedy_exact,exchange",
                                            "--phase",  "prefill,blockwise:32,decode",
                                            "--diff",   "paper,official,kvpress"};
  evict(dump, temp / "whole", joined(options, {"--threads", "1"}));
  evict(dump, temp / "4", joined(options, {"--threads", "4"}));
  CHECK(difference(temp / "whole", temp / "4").empty());

  // the disk is full: whole files only, and the run goes on
  const std::vector<std::string> resumed = joined(
      joined({"evict", dump, "--out", temp / "r", "--precision", "f64", "--resume"}, options), {"--quiet"});
  const ProcessResult full = run_kvreplay(resumed, {.folder = {}, .largest_file = 30000});
  CHECK(full.code == 2);
  CHECK(lines(full.err) == 1);
  CHECK(contains(full.err, "cannot be written"));
  CHECK_FALSE(has_half_written(temp / "r"));
  fs::remove_all(temp / "r");
  {
    Process process(kvreplay_command(resumed));
    REQUIRE(wait_for(temp / "r/.kvreplay/layers/layer_01.figures", process));
    process.send(SIGINT);
    const ProcessResult stopped = process.wait();
    INFO(stopped.err);
    CHECK(stopped.code == 130);
    CHECK_FALSE(fs::exists(temp / "r/summary.json"));
  }
  CHECK(run_kvreplay(resumed).code == 0);
  CHECK(difference(temp / "whole", temp / "r").empty());
}

TEST_CASE("shards of evictions deal the layers out, and one may be empty", "[cli][evict]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {"--policy",       "h2o",    "--phase", "prefill,decode", "--diff",
                                            "paper,official", "--shard"};
  evict(temp / "dump", temp / "2", joined(options, {"2/2"}));
  evict(temp / "dump", temp / "3", joined(options, {"3/3"}));
  CHECK(fs::exists(temp / "2/layer_01/kept"));
  CHECK_FALSE(fs::exists(temp / "2/layer_00"));
  for (const char* table : {"evictions.csv", "decode.csv", "diff.csv"})
    CHECK(lines(file_text(temp / "3" / table)) == 1);
}
