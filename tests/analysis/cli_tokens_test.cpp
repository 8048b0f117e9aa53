#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

ProcessResult tokens(const std::string& out, std::vector<std::string> more = {},
                     const ProcessOptions& options = {}) {
  std::vector<std::string> arguments = {"tokens", sample_dump(), "--out", out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  ProcessResult result = run_kvreplay(arguments, options);
  INFO(result.err);
  CHECK(result.err.size() + 1 > 0);
  return result;
}

Json summary(const std::string& folder) { return Json::parse(file_text(folder + "/summary.json")); }

std::vector<std::string> rows(const std::string& path) {
  std::istringstream in(file_text(path));
  std::vector<std::string> result;
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

/// The header and the values of a small .npy file.
template <class T>
std::vector<T> npy(const std::string& path, std::string& header) {
  const std::string bytes = file_text(path);
  REQUIRE(bytes.size() > 10);
  const std::size_t length =
      static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  header = bytes.substr(10, length);
  std::vector<T> values((bytes.size() - 10 - length) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + 10 + length, values.size() * sizeof(T));
  return values;
}

}  // namespace

TEST_CASE("the result folder is as its format says", "[cli][tokens]") {
  const TempDir temp;
  const std::string out = temp / "r";
  const ProcessResult done = tokens(out);
  REQUIRE(done.code == 0);
  CHECK(contains(done.out, "results: " + out));
  CHECK(done.err.empty());

  const auto heads = rows(out + "/heads.csv");
  CHECK(heads.size() == 1 + 12);
  CHECK(heads[0] ==
        "layer,kv_head,attn,attn_sq,value,key,joint,caote,fastcaote,knorm,keydiff,expected_attention,exact_"
        "value,"
        "exact_key,exact_joint,exact_remove,oracle_next,oracle_future,oracle_importance");
  CHECK(heads[3].rfind("1,0,", 0) == 0);

  const auto agreement = rows(out + "/agreement.csv");
  CHECK(agreement[0] == "layer,kv_head,score,reference,rows,window,reserve,metric,value");
  CHECK(agreement[1].rfind("0,0,attn,exact_value,window,32,0,spearman,", 0) == 0);
  // 94 pairs, 14 scores by 7 references less 4 with themselves; 11 figures each; rel_l1 for 7 scores by 6
  // references less 4
  CHECK(agreement.size() == 1 + 12 * (94 * 11 + 7 * 6 - 4));
  CHECK(std::count_if(agreement.begin(), agreement.end(), [](const std::string& row) {
          return contains(row, ",oracle_future,future,32,0,");
        }) == 12 * (14 * 11 + 7));

  std::string header;
  const auto attn = npy<float>(out + "/layer_02/tokens/attn.npy", header);
  CHECK(contains(header, "'<f4'"));
  CHECK(contains(header, "(2, 896)"));
  double sum = 0;
  for (std::size_t p = 0; p < 896; ++p) sum += attn[p];
  CHECK(sum == Approx(64).epsilon(1e-5));  // 32 rows of 2 query heads, each of weight 1
  const auto map = npy<double>(out + "/maps/attn.npy", header);
  CHECK(contains(header, "'<f8'"));
  CHECK(contains(header, "(6, 2)"));
  CHECK(map[4] == Approx(sum).epsilon(1e-6));
  CHECK(npy<double>(out + "/maps/key~exact_remove~recall@10%.npy", header).size() == 12);
  CHECK_FALSE(fs::exists(out + "/maps/attn~exact_key~rel_l1.npy"));
  CHECK_FALSE(fs::exists(out + "/maps/exact_key~exact_key~spearman.npy"));

  const Json json = summary(out);
  CHECK(json["schema"] == 1);
  CHECK(json["totals"]["heads"] == 12);
  CHECK(json["totals"]["agreement_rows"] == agreement.size() - 1);
  CHECK(json["layers"] == Json({0, 1, 2, 3, 4, 5}));
  REQUIRE(json["left_out"].size() == 3);  // the sample has neither a second reading nor gradients
  CHECK(json["left_out"][0]["what"] == "kvzip");
  CHECK(json["left_out"][1]["what"] == "exact_loss");
  CHECK(json["left_out"][2]["what"] == "oracle_loss");
  CHECK_FALSE(fs::exists(out + "/.kvreplay"));
  const Json run_file = Json::parse(file_text(out + "/run.json"));
  CHECK(run_file["backend"] == "cpu");
}

TEST_CASE("any number of threads, and analyze, give the same bytes", "[cli][tokens]") {
  const TempDir temp;
  for (const std::vector<std::string>& options : {std::vector<std::string>{},
                                                  {"--window", "896", "--reserve", "0,64"},
                                                  {"--precision", "f64", "--per-query-head"}}) {
    fs::remove_all(temp / "1");
    auto with = [&](const std::string& threads) {
      auto all = options;
      all.insert(all.end(), {"--threads", threads});
      return all;
    };
    REQUIRE(tokens(temp / "1", with("1")).code == 0);
    for (const char* threads : {"2", "5"}) {
      fs::remove_all(temp / "n");
      REQUIRE(tokens(temp / "n", with(threads)).code == 0);
      CHECK(difference(temp / "1", temp / "n").empty());
    }
  }
  auto analyze = std::vector<std::string>{"analyze", sample_dump(), "--out", temp / "a", "--only", "tokens"};
  succeed(analyze);
  REQUIRE(tokens(temp / "t").code == 0);
  CHECK(difference(temp / "a", temp / "t").empty());
}

TEST_CASE("some layers, some metrics, several reserves", "[cli][tokens]") {
  const TempDir temp;
  const std::string out = temp / "r";
  REQUIRE(tokens(out, {"--layers", "4,1-2", "--metrics", "attn,exact_remove", "--reserve", "32,860"}).code ==
          0);
  CHECK(summary(out)["layers"] == Json({1, 2, 4}));
  CHECK_FALSE(fs::exists(out + "/layer_00"));
  CHECK(fs::exists(out + "/layer_04/tokens/exact_remove.npy"));
  CHECK_FALSE(fs::exists(out + "/layer_04/tokens/key.npy"));
  CHECK(rows(out + "/heads.csv")[0] == "layer,kv_head,attn,exact_remove");
  std::string header;
  CHECK(npy<double>(out + "/maps/attn~exact_remove~spearman.npy", header).size() == 6);
  CHECK(contains(header, "(3, 2)"));
  CHECK(fs::exists(out + "/maps/attn~exact_remove~spearman~reserve860.npy"));
  CHECK(fs::exists(out + "/maps/attn~exact_remove~recall@40.npy"));
  // All that the score may choose is reserved away.
  CHECK_FALSE(fs::exists(out + "/maps/attn~exact_remove~recall@40~reserve860.npy"));
  CHECK(file_text(out + "/maps/attn~exact_remove~spearman.npy") ==
        file_text(out + "/maps/attn~exact_remove~spearman~reserve860.npy"));
  // With 32 reserved, k = 9 is left out; with 860 every k is.
  CHECK(rows(out + "/agreement.csv").size() == 1 + 6 * ((11 - 2) + 1));
}

TEST_CASE("the rows of a window are those of a run with it alone", "[cli][tokens]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);  // 61 candidates
  const std::string more = GENERATE("", "--per-query-head"), precision = GENERATE("f32", "f64");
  const auto run = [&](const std::string& out, const std::string& windows) {
    std::vector<std::string> arguments{"tokens", dump,        "--out", temp / out,    "--window",
                                       windows,  "--reserve", "5,0",   "--precision", precision};
    if (!more.empty()) arguments.push_back(more);
    const ProcessResult done = succeed(arguments);
    return done;
  };
  // 5 % of 61 is 3; 61 and all, 3 and 5 % are the same rows.
  const ProcessResult all = run("all", "8,5%,all,3,61,1000");
  CHECK_FALSE(contains(all.out, "clipped"));  // of a window that is there already
  CHECK(summary(temp / "all")["options"]["tokens"]["window"] == Json({8, "5%", "all"}));
  CHECK(summary(temp / "all")["totals"]["window_rows"] == 8);
  std::map<std::string, std::vector<std::string>> of_window;
  for (const std::string& row : rows(temp / "all/agreement.csv")) {
    std::istringstream fields(row);
    std::string window;
    for (int column = 0; column <= 5; ++column) std::getline(fields, window, ',');
    of_window[window].push_back(row);
  }
  CHECK(of_window.size() == 4);  // the header's "window" among them
  std::string header;
  for (const auto& [window, name] : {std::pair("8", "8"), {"3", "5%"}, {"61", "all"}}) {
    INFO(window);
    const std::string alone = temp / (std::string("alone") + window);
    run(std::string("alone") + window, name);
    auto wanted = rows(alone + "/agreement.csv");
    wanted.erase(wanted.begin());
    CHECK(of_window[window] == wanted);
    const std::string suffix = window == std::string("8") ? "" : fmt::format("~window{}", window);
    for (const char* reserve : {"", "~reserve0"})
      CHECK(file_text(alone + "/maps/joint~oracle_next~recall@20%" + reserve + ".npy") ==
            file_text(temp / fmt::format("all/maps/joint~oracle_next~recall@20%{}{}.npy", suffix, reserve)));
  }
  CHECK(file_text(temp / "all/heads.csv") == file_text(temp / "alone8/heads.csv"));
  for (const char* metric : {"attn", "exact_remove", "oracle_next", "knorm"})
    CHECK(file_text(temp / fmt::format("all/layer_01/tokens/{}.npy", metric)) ==
          file_text(temp / fmt::format("alone8/layer_01/tokens/{}.npy", metric)));
  succeed({"report", temp / "all"});
  CHECK(contains(file_text(temp / "all/report/index.html"), "Recall of the costliest tokens, by window"));
  succeed({"report", temp / "alone8"});
  CHECK_FALSE(contains(file_text(temp / "alone8/report/index.html"), "costliest tokens, by window"));
}

TEST_CASE("every query head's own values add up to the group's", "[cli][tokens]") {
  const TempDir temp;
  REQUIRE(tokens(temp / "g", {"--precision", "f64"}).code == 0);
  REQUIRE(tokens(temp / "q", {"--precision", "f64", "--per-query-head"}).code == 0);
  std::string header;
  const auto group = npy<double>(temp / "g/layer_05/tokens/exact_key.npy", header);
  CHECK(contains(header, "(2, 896)"));
  const auto query = npy<double>(temp / "q/layer_05/tokens/exact_key.npy", header);
  CHECK(contains(header, "(4, 896)"));
  for (std::size_t p = 0; p < 896; ++p)
    REQUIRE(query[2 * 896 + p] + query[3 * 896 + p] == Approx(group[896 + p]).epsilon(1e-12));
  const auto a = rows(temp / "g/agreement.csv"), b = rows(temp / "q/agreement.csv");
  REQUIRE(a.size() == b.size());
  for (std::size_t r = 1; r < a.size(); ++r) {
    const auto comma = a[r].rfind(',') + 1;
    REQUIRE(a[r].substr(0, comma) == b[r].substr(0, comma));
    REQUIRE(std::stod(a[r].substr(comma)) ==
            Approx(std::stod(b[r].substr(comma))).epsilon(1e-9).margin(1e-9));
  }
}

TEST_CASE("what cannot be had is left out, or refused when it is named", "[cli][tokens]") {
  const TempDir temp;
  const ProcessResult done = tokens(temp / "r", {"--prompt-len", "1024", "--window", "4000"});
  REQUIRE(done.code == 0);
  CHECK(contains(done.out, "window 4000 clipped to 1024"));
  const Json json = summary(temp / "r");
  REQUIRE(json["left_out"].size() == 6);
  for (const auto& [at, metric] :
       {std::pair{0, "kvzip"}, {1, "exact_loss"}, {2, "oracle_next"}, {5, "oracle_loss"}})
    CHECK(json["left_out"][at]["what"] == metric);
  CHECK(contains(json["notes"].dump(), "clipped"));
  CHECK_FALSE(fs::exists(temp / "r/layer_00/tokens/oracle_next.npy"));
  const ProcessResult named = tokens(temp / "n", {"--prompt-len", "1024", "--metrics", "attn,oracle_next"});
  CHECK(named.code == 2);
  CHECK(contains(named.err, "--metrics: oracle_next is unavailable: "));
  CHECK(lines(named.err) == 1);
}

TEST_CASE("an existing folder is neither overwritten nor computed twice", "[cli][tokens]") {
  const TempDir temp;
  const std::string out = temp / "r";
  REQUIRE(tokens(out).code == 0);
  const auto before = contents(out);
  const std::string run_file = file_text(out + "/run.json");
  const ProcessResult refused = tokens(out);
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "--force"));
  const ProcessResult resumed = tokens(out, {"--resume"});
  CHECK(resumed.code == 0);
  CHECK(contains(resumed.out, "already finished"));
  CHECK(file_text(out + "/run.json") == run_file);
  const ProcessResult other = tokens(out, {"--resume", "--window", "8"});
  CHECK(other.code == 2);
  CHECK(contains(other.err, "options.tokens.window was [32], is [8]"));
  CHECK(contents(out) == before);
  CHECK(tokens(out, {"--force", "--window", "8"}).code == 0);
  CHECK(summary(out)["options"]["tokens"]["window"] == Json::array({8}));
  const ProcessResult dump = run_kvreplay({"tokens", sample_dump(), "--out", sample_dump(), "--force"});
  CHECK(dump.code == 2);
  CHECK(contains(dump.err, "--out: expected a folder apart from what is read"));
}

TEST_CASE("replacing results removes nothing that a run did not write", "[cli][tokens]") {
  const TempDir temp;
  const std::string out = temp / "r";
  REQUIRE(tokens(out).code == 0);
  for (const char* name : {"mine.txt", "layer_00/mine.npy", "layer_99/x", "maps/mine.png"}) {
    fs::create_directories(fs::path(out + "/" + name).parent_path());
    write_file(out + "/" + name, "mine");
  }
  REQUIRE(tokens(out, {"--force", "--layers", "1"}).code == 0);
  for (const char* name : {"mine.txt", "layer_00/mine.npy", "layer_99/x", "maps/mine.png"})
    CHECK(file_text(out + "/" + name) == "mine");
  CHECK_FALSE(fs::exists(out + "/layer_00/tokens"));
}

TEST_CASE("a folder to write to is apart from what is read", "[cli][tokens]") {
  const TempDir temp;
  const fs::path dump = temp / "results/dump";
  succeed({"synth", dump, "--layers", "1", "--prompt", "40", "--decode", "4", "--head-dim", "8"});
  succeed({"tokens", dump, "--out", temp / "other"});
  fs::create_symlink(dump, temp / "link");
  for (const auto& [out, found] : {std::pair{temp / "results", "one that contains it"},
                                   {dump / "below", "one inside it"},
                                   {temp / "link", "the same one"},
                                   {temp / "link/below", "one inside it"}})
    for (const char* how : {"--force", "--resume"}) {
      const ProcessResult refused = run_kvreplay({"tokens", dump, "--out", out, how});
      INFO(refused.err);
      CHECK(refused.code == 2);
      CHECK(contains(refused.err, found));
    }
  const ProcessResult several =
      run_kvreplay({"tokens", dump, sample_dump(), "--out", temp / "results", "--force"});
  CHECK(contains(several.err, "one that contains it"));
  CHECK(fs::exists(dump / "manifest.json"));
  CHECK_FALSE(fs::exists(dump / "below"));
}

TEST_CASE("standard output is for people, or with --json for programs", "[cli][tokens]") {
  const TempDir temp;
  CHECK(tokens(temp / "q", {"--quiet"}).out.empty());
  const Json json = Json::parse(tokens(temp / "j", {"--json"}).out);
  CHECK(json["result"] == (temp / "j").string());
  CHECK(json["totals"]["heads"] == 12);
}

TEST_CASE("shards deal the layers out", "[cli][tokens]") {
  const TempDir temp;
  REQUIRE(tokens(temp / "1", {"--shard", "1/4"}).code == 0);
  REQUIRE(tokens(temp / "3", {"--shard", "3/4"}).code == 0);
  REQUIRE(tokens(temp / "9", {"--shard", "9/9"}).code == 0);
  CHECK(summary(temp / "1")["layers"] == Json({0, 4}));
  CHECK(summary(temp / "3")["layers"] == Json(std::vector<int>{2}));
  CHECK(summary(temp / "9")["layers"].empty());
  CHECK(rows(temp / "9/heads.csv").size() == 1);
}

TEST_CASE("a full disk leaves whole files and a run that can go on", "[cli][tokens]") {
  const TempDir temp;
  const std::string out = temp / "r";
  REQUIRE(tokens(temp / "whole").code == 0);
  // token arrays of 7 KiB fit, heads.csv too, agreement.csv does not
  for (const std::size_t limit : {std::size_t{4000}, std::size_t{40000}}) {
    const ProcessResult full = tokens(out, {"--resume"}, {.folder = {}, .largest_file = limit});
    CHECK(full.code == 2);
    CHECK(lines(full.err) == 1);
    CHECK(contains(full.err,
                   limit == 4000 ? "attn.npy: cannot be written" : "agreement.csv: cannot be written"));
    CHECK_FALSE(has_half_written(out));
    CHECK_FALSE(fs::exists(out + "/summary.json"));
  }
  const ProcessResult resumed = tokens(out, {"--resume"});
  REQUIRE(resumed.code == 0);
  CHECK(contains(resumed.out, "resumed: 6 layers were there already, 0 computed now"));
  CHECK(difference(out, temp / "whole").empty());
}

TEST_CASE("a bad layer leaves the layers before it, and the run goes on once it is repaired",
          "[cli][tokens]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r", values = dump + "/layer_04/v.npy";
  fs::copy(sample_dump(), dump, fs::copy_options::recursive);
  const std::string good = file_text(values);
  std::string bad = good;
  bad[128 + 2 * 64 * 10] = 0x00;  // position 10, channel 0 becomes NaN
  bad[128 + 2 * 64 * 10 + 1] = 0x7e;
  std::ofstream(values, std::ios::binary) << bad;
  const ProcessResult failed = run_kvreplay({"tokens", dump, "--out", out});
  CHECK(failed.code == 2);
  CHECK(lines(failed.err) == 1);
  CHECK(contains(failed.err, "layer 4"));
  CHECK(contains(failed.err, "10"));
  CHECK_FALSE(fs::exists(out + "/summary.json"));
  CHECK(fs::exists(out + "/layer_03/tokens/attn.npy"));
  CHECK_FALSE(has_half_written(out));

  std::ofstream(values, std::ios::binary) << good;
  const ProcessResult resumed = run_kvreplay({"tokens", dump, "--out", out, "--resume"});
  CHECK(resumed.code == 0);
  CHECK(contains(resumed.out, "resumed: 4 layers were there already, 2 computed now"));
  succeed({"tokens", dump, "--out", temp / "whole"});
  CHECK(difference(out, temp / "whole").empty());
}

TEST_CASE("what no metric looks at is not read", "[cli][tokens]") {
  const TempDir temp;
  const std::string dump = temp / "dump", queries = dump + "/layer_00/q.npy";
  fs::copy(sample_dump(), dump, fs::copy_options::recursive);
  std::string bytes = file_text(queries);
  bytes[128] = 0x00;  // position 0, channel 0 becomes NaN
  bytes[129] = 0x7e;
  std::ofstream(queries, std::ios::binary) << bytes;
  succeed({"tokens", dump, "--out", temp / "r", "--layers", "0", "--metrics", "attn,exact_joint"});
  REQUIRE(tokens(temp / "whole", {"--layers", "0"}).code == 0);
  for (const std::string name : {"/layer_00/tokens/attn.npy", "/layer_00/tokens/exact_joint.npy"})
    CHECK(file_text(temp / ("r" + name)) == file_text(temp / ("whole" + name)));
  for (const char* metrics : {"all", "attn,expected_attention"}) {
    const ProcessResult failed = run_kvreplay(
        {"tokens", dump, "--out", temp / "bad", "--force", "--layers", "0", "--metrics", metrics});
    CHECK(failed.code == 2);
    CHECK(contains(failed.err, "NaN at layer 0, query head 0, position 0"));
  }
}
