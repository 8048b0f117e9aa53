#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdint>
#include <limits>

// What `evict` takes from its user: scores, kept sets, dumps that lack something, mistakes.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ProcessResult evict(const std::string& dump, const std::string& out, const std::vector<std::string>& more) {
  ProcessResult result = run_kvreplay(joined({"evict", dump, "--out", out, "--precision", "f64"}, more));
  INFO(result.err);
  REQUIRE(result.code == 0);
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

TEST_CASE("a score of the user's ranks like a metric of the same values", "[cli][evict]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  REQUIRE(run_kvreplay({"tokens", temp / "dump", "--out", temp / "t", "--precision", "f64", "--metrics",
                        "value", "--window", "16"})
              .code == 0);
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
    REQUIRE(run_kvreplay({"analyze", dump, "--out", temp / "a", "--prompt-len", "70"}).code == 0);
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
    REQUIRE(run_kvreplay({"analyze", dump, "--out", temp / "a"}).code == 0);
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
    REQUIRE(run_kvreplay({"analyze", dump, "--out", temp / "a", "--only", "evict"}).code == 0);
    CHECK(contains(left_out(temp / "a"), "\"expected_attention\""));
  }
}

TEST_CASE("mistakes in evict's options are one line, and leave no folder", "[cli][evict]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const auto error = [&](const std::vector<std::string>& more) {
    return refusal(joined({"evict", dump}, more), temp / "r");
  };
  const std::string huge = "9223372036854775807";
  CHECK(contains(error({"--policy", "snapvk"}), "--policy: unknown policy 'snapvk'; did you mean 'snapkv'?"));
  CHECK(contains(error({"--policy", "snapkv+jont"}), "unknown score 'jont'; did you mean 'joint'?"));
  CHECK(contains(error({"--policy", "streaming+joint"}), "streaming ranks by what it is named after"));
  CHECK(contains(error({"--policy", "h2o,,tova"}), "without empty items"));
  CHECK(contains(error({"--policy", "exchange+exchange"}), "unknown score 'exchange'"));
  CHECK(contains(error({"--policy", "zzz"}), "unknown policy 'zzz'; there are: streaming, "));
  CHECK(contains(error({"--policy", "h2o+zzz"}), "unknown score 'zzz'; there are: attn, attn_sq, "));
  CHECK(contains(error({"--policy", "score"}), "--policy: 'score': expected score:NAME, a score alone"));
  CHECK(contains(error({"--policy", "score+joint"}), "'score+joint': expected score:joint, a score alone"));
  CHECK(contains(error({"--policy", "snapkv:joint"}), "'snapkv:joint': expected snapkv+joint"));
  CHECK(contains(error({"--policy", "score:jont"}), "unknown score 'jont'; did you mean 'joint'?"));
  CHECK(contains(error({"--policy", "exchange+score"}), "unknown score 'score'"));
  const auto own = [&](const std::string& policy, const std::string& what) {
    CHECK(contains(error({"--policy", "h2o," + policy}), fmt::format("--policy: '{}': {}", policy, what)));
  };
  own("snapkv[windw=64]", "unknown option 'windw'; did you mean 'window'?");
  own("snapkv[zz=64]", "unknown option 'zz'; there are: window, sinks, recent, pool");
  own("snapkv[window=64", "expected ']' at its end");
  own("snapkv[window=64]x", "expected ']' at its end");
  own("snapkv[]",
      "expected [NAME=VALUE,...] with window, sinks, recent, pool, by, n_sink, n_future, epsilon, found ''");
  own("snapkv[window]",
      "expected [NAME=VALUE,...] with window, sinks, recent, pool, by, n_sink, n_future, epsilon, found "
      "'window'");
  for (const char* word : {"0", "0%", "101%", "x%", "-5%", "half"})
    own(fmt::format("snapkv[window={}]", word),
        fmt::format(
            "window: expected a whole number of at least 1, a share of the prompt as 5%, or all, found '{}'",
            word));
  own("snapkv[window=8,window=9]", "window: expected once, found twice");
  own("snapkv[window=8,pool=4]", "pool: expected max:N or avg:N with an odd N, or none, found '4'");
  own("snapkv[pool=avg:-1]", "pool: expected max:N or avg:N with an odd N, or none, found 'avg:-1'");
  own("keydiff[window=8]", "window has no effect: it ranks by nothing of window rows");
  own("snapkv[epsilon=0]", "epsilon has no effect: it is one of expected_attention");
  own("expected_attention[n_future=0]", "n_future: expected a whole number of at least 1, found '0'");
  own("greedy_exact[sinks=8]", "sinks has no effect: it searches, and neither ranks nor pins");
  CHECK(
      contains(error({"--budget", "8", "--policy", "h2o,h2o[sinks=4,recent=5]"}),
               "--policy: 'h2o[sinks=4,recent=5]': sinks and recent: expected at most the budget of 8 tokens "
               "together, found 9"));
  CHECK(contains(error({"--budget", "8", "--sinks", "4", "--policy", "h2o[recent=5]"}), "together, found 9"));
  CHECK(contains(error({"--budget", "62"}),
                 "--budget: expected 0 to 61 tokens, the prompt's length, found 62"));
  CHECK(contains(error({"--budget", "-1"}),
                 "--budget: expected a whole number of at least 0, or a share as 20%, found '-1'"));
  for (const char* sigma : {"0", "1", "nan", "-1", "2", "inf"})
    CHECK(contains(
        error({"--sigma", sigma}),
        fmt::format("--sigma: expected compression ratios between 0 and 1, both excluded, found {}", sigma)));
  CHECK(contains(error({"--sigma", "half"}), "--sigma: expected a number, found 'half'"));
  CHECK(contains(error({"--sigma", ""}), "--sigma: expected a number, found ''"));
  CHECK(contains(error({"--sigma", "0.5", "--budget", "8"}), "excludes"));
  CHECK(contains(error({"--sigma", "0.5", "--keep", "8"}), "excludes"));
  CHECK(contains(error({"--keep", "20%", "--budget", "8"}), "excludes"));
  for (const char* keep : {"120%", "0%", "100%", "1.5", "-3", "%", "some", "20%%", "nan%"})
    CHECK(contains(
        error({"--keep", keep}),
        fmt::format("--keep: expected a share between 0 and 1, as 20% or 0.2, or whole tokens, found '{}'",
                    keep)));
  CHECK(contains(error({"--keep", "62"}), "expected 0 to 61 tokens, the prompt's length, found 62"));
  const std::string pins = "--sinks and --recent: expected at most the budget of 8 tokens together, found ";
  CHECK(contains(error({"--policy", "h2o", "--budget", "8", "--sinks", "4", "--recent", "5"}), pins + "9"));
  CHECK(contains(error({"--policy", "h2o", "--budget", "8", "--sinks", "9"}), pins + "9"));
  CHECK(contains(error({"--policy", "h2o", "--budget", "8", "--recent", "20"}), pins + "20"));
  for (const char* option : {"--sinks", "--recent", "--window", "--decode-window"})
    CHECK(contains(error({"--policy", "snapkv", option, huge}),
                   fmt::format("{}: expected a whole number", option)));
  CHECK(contains(error({"--decode-window", "0"}),
                 "--decode-window: expected a whole number of at least 1, found '0'"));
  for (const std::string& phase : std::vector<std::string>{
           "decoding", "blockwise", "blockwise:", "blockwise:0", "blockwise:-4", "blockwise:" + huge})
    CHECK(contains(error({"--phase", phase}), "--phase: expected prefill, blockwise:N with N of at least 1"));
  for (const std::string& pool :
       std::vector<std::string>{"max:4", "max:0", "max", "min:3", "avg:x", "max:" + huge})
    CHECK(contains(error({"--pool", pool}), "--pool: expected max:N or avg:N with an odd N, or none, found"));
  CHECK(contains(error({"--on", "past"}), "--on: expected window or future, found 'past'"));
  CHECK(contains(error({"--diff", "paper"}), "--diff: expected two or three of"));
  CHECK(contains(error({"--diff", "paper,paper"}), "--diff: expected two or three of"));
  CHECK(
      contains(error({"--diff", "paper,vllm"}), "--diff: expected paper, official or kvpress, found 'vllm'"));
  CHECK(contains(error({"--semantics", "vllm"}),
                 "--semantics: expected paper, official or kvpress, found 'vllm'"));
  CHECK(contains(error({"--semantics", "kvpress", "--diff", "paper,official"}), "excludes"));
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
  write_file(file, npy("<i8", {2, 2, 61}, ones).bytes());
  CHECK(contains(error("--score", "mine=" + file), "'<i8'"));
  std::vector<double> broken = ones;
  broken[70] = std::numeric_limits<double>::quiet_NaN();
  write_file(file, npy("<f8", {2, 2, 61}, broken).bytes());
  CHECK(contains(error("--score", "mine=" + file), "NaN or infinity (element 70)"));
  write_file(file, scores.bytes());
  CHECK(contains(error("--kept", "mine=" + file), "expected booleans"));
  CHECK(contains(refusal({"evict", dump, "--policy", "mine", "--score", "mine=" + file}, temp / "r"),
                 "a score is used as score:mine, or snapkv+mine"));
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
