#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <sys/stat.h>
#include <utility>

using namespace kvreplay::test;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

void make_dump(const std::string& folder) {
  succeed({"synth", folder, "--layers", "5", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "8",
           "--prompt", "61", "--decode", "9"});
}

/// The run as a whole into DIR/whole, and its parts into DIR/1 to DIR/n.
void run_parts(std::vector<std::string> command, const TempDir& temp, int n) {
  const auto run_into = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--out", out, "--quiet"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    succeed(arguments);
  };
  run_into(temp / "whole", {});
  for (int part = 1; part <= n; ++part)
    run_into(temp / std::to_string(part), {"--shard", std::to_string(part) + "/" + std::to_string(n)});
}

void rewrite_summary(const std::string& folder, const std::string& key, const Json& value) {
  Json summary = Json::parse(file_text(folder + "/summary.json"));
  summary[key] = value;
  write_file(folder + "/summary.json", summary.dump());
}

}  // namespace

TEST_CASE("merged parts equal the whole run", "[cli][merge]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_dump(dump);
  const std::vector<std::vector<std::string>> commands = {
      {"tokens", dump, "--per-query-head"},
      {"evict", dump, "--policy", "snapkv,h2o", "--phase", "prefill,decode", "--sigma=0.5"},
      {"channels", dump, "--png", "--ratio", "0.5", "--layers", "0,2-4"},
      {"budget", dump, "--normalise", "layer"},
      {"analyze", dump, "--precision", "f64", "--threads", "1"}};
  const std::vector<std::string>& command = commands[GENERATE(range(0u, 5u))];
  INFO(command.front());
  run_parts(command, temp, 2);
  const ProcessResult merged = run_kvreplay({"merge", temp / "2", temp / "1", "--out", temp / "m"});
  INFO(merged.err);
  CHECK(merged.code == 0);
  CHECK(merged.err.empty());
  CHECK(contains(merged.out, "results: "));
  CHECK(difference(temp / "m", temp / "whole").empty());
}

TEST_CASE("a part keeps what joins all layers for merge, and says so", "[cli][merge]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_dump(dump);
  run_parts({"analyze", dump}, temp, 7);  // two parts have no layer
  CHECK_FALSE(fs::exists(temp / "1/budgets.csv"));
  CHECK(fs::exists(temp / "1/figures/layer_00.figures"));
  const Json left_out = Json::parse(file_text(temp / "1/summary.json"))["left_out"];
  CHECK(left_out.back()["what"] == "budget");
  CHECK(contains(left_out.back()["why"], "kvreplay merge writes them"));

  std::vector<std::string> merge = {"merge"};
  for (int part = 7; part >= 1; --part) merge.push_back(temp / std::to_string(part));
  merge.insert(merge.end(), {"--out", temp / "m", "--quiet"});
  CHECK(run_kvreplay(merge).code == 0);
  CHECK(difference(temp / "m", temp / "whole").empty());

  SECTION("again: refused, and with --force the same") {
    const ProcessResult again = run_kvreplay(merge);
    CHECK(again.code == 2);
    CHECK(contains(again.err, "already holds finished results; --force replaces them"));
    merge.emplace_back("--force");
    CHECK(run_kvreplay(merge).code == 0);
    CHECK(difference(temp / "m", temp / "whole").empty());
  }
}

TEST_CASE("parts of relative paths merge from anywhere, and a dump may have moved", "[cli][merge]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_dump(dump);
  for (const char* part : {"1/2", "2/2"})
    succeed({"tokens", "dump", "--out", std::string("p") + part[0], "--shard", part, "--quiet"},
            {.folder = std::string(temp / ""), .largest_file = {}});
  succeed({"tokens", dump, "--out", temp / "whole", "--quiet"});
  fs::create_directory(temp / "elsewhere");
  const ProcessOptions elsewhere{.folder = std::string(temp / "elsewhere"), .largest_file = {}};
  succeed({"merge", "../p1", "../p2", "--out", "m", "--quiet"}, elsewhere);
  CHECK(difference(temp / "elsewhere/m", temp / "whole").empty());

  fs::rename(dump, temp / "moved");
  const ProcessResult lost = run_kvreplay({"merge", "../p1", "../p2", "--out", "n"}, elsewhere);
  CHECK(lost.code == 2);
  CHECK(lines(lost.err) == 1);
  CHECK_FALSE(fs::exists(temp / "elsewhere/n"));
  succeed({"merge", "../p1", "../p2", "--out", "n", "--dump", "../moved", "--quiet"}, elsewhere);
  CHECK(difference(temp / "elsewhere/n", temp / "whole").empty());
}

TEST_CASE("parts that make no whole are refused in a line", "[cli][merge]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "m";
  make_dump(dump);
  run_parts({"tokens", dump}, temp, 3);
  const auto error = [&](std::vector<std::string> parts) {
    parts.insert(parts.begin(), "merge");
    return refusal(parts, out);
  };
  const std::string one = temp / "1", two = temp / "2", three = temp / "3";
  CHECK(contains(error({one, two}), "the other parts of its run are missing: 3/3"));
  CHECK(contains(error({one, two, two}), "both are part 2/3"));
  CHECK(contains(error({one, two, three, one}), "both are part 1/3"));
  CHECK(contains(error({temp / "whole", two, three}), "expected a part of a --shard i/n run"));
  CHECK(contains(error({one, two, temp / "none"}),
                 "expected the result folder of a --shard run, found no folder"));
  CHECK(contains(error({one, two, dump}), "found no summary.json"));
  CHECK(contains(complaint({"merge", one, two, three, "--out", two}), "is one of the parts"));

  SECTION("of another run") {
    for (const char* part : {"1/3", "1/2"}) {
      const std::string other = temp / "other";
      succeed({"tokens", dump, "--out", other, "--window", "16", "--shard", part, "--force"});
      CHECK(contains(error({other, two, three}),
                     *(part + 2) == '3' ? "options.tokens.window was [16], is [32]" : "found 1/2 and 2/3"));
    }
  }
  SECTION("of another schema") {
    rewrite_summary(three, "schema", 2);
    CHECK(contains(error({one, two, three}), "expected results of schema 1, found schema 2"));
  }
  SECTION("unfinished") {
    fs::remove(three + "/summary.json");
    fs::create_directory(three + "/.kvreplay");
    write_file(three + "/.kvreplay/state.json", "{}");
    CHECK(contains(error({one, two, three}), "found an unfinished one (the run's command with --resume"));
  }
  SECTION("one of very many") {
    rewrite_summary(one, "shard", "7/1000000000000000");
    CHECK(contains(error({one}), "are missing: 1/1000000000000000, 2/"));
    CHECK(contains(error({one}), "and 999999999999991 more"));
  }
  SECTION("nested too deep") {
    write_file(three + "/summary.json", std::string(1000000, '[') + std::string(1000000, ']'));
    CHECK(contains(error({one, two, three}),
                   "summary.json: expected what kvreplay writes, found a damaged file"));
  }
  SECTION("damaged") {
    write_file(three + "/summary.json", "{\"program\":");
    CHECK(contains(error({one, two, three}),
                   "summary.json: expected what kvreplay writes, found a damaged file"));
  }
  SECTION("without its command") {
    write_file(one + "/run.json", "{}");
    CHECK(contains(error({one, two, three}), "run.json: expected the command of the run"));
    write_file(one + "/run.json", R"({"command": "tokens", "dump": "d", "directory": ".", "arguments": []})");
    CHECK(contains(error({one, two, three}), "run.json: expected the dump among the arguments, found none"));
  }
  SECTION("of a dump that changed since") {
    Npy k = npy_file(dump + "/layer_01/k.npy");
    k.data[100] = static_cast<char>(k.data[100] ^ 1);
    write_file(dump + "/layer_01/k.npy", k.bytes());
    const ProcessResult merged = run_kvreplay({"merge", one, two, three, "--out", out});
    CHECK(merged.code == 2);
    CHECK(lines(merged.err) == 1);
    CHECK(contains(merged.err, "layer 1 of the dump was another when it was computed"));
    CHECK_FALSE(fs::exists(out + "/summary.json"));
  }
}

TEST_CASE("a part that is not as it was written is refused, and the file named", "[cli][merge]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "m", one = temp / "1";
  make_dump(dump);
  run_parts({"tokens", dump}, temp, 2);
  const fs::path array = one + "/layer_00/tokens/attn.npy", other = one + "/layer_02/tokens/attn.npy";
  const fs::path record = one + "/figures/layer_00.figures";
  const std::string text = file_text(array);
  const auto changed = [](std::string bytes, std::size_t at) {
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return bytes;
  };
  const std::pair<fs::path, std::function<void()>> damages[] = {
      {array, [&] { fs::remove(array); }},
      {array, [&] { write_file(array, ""); }},
      {array, [&] { write_file(array, text.substr(0, text.size() - 1)); }},
      {array, [&] { write_file(array, changed(text, text.size() / 2)); }},
      {array, [&] { fs::copy_file(other, array, fs::copy_options::overwrite_existing); }},
      {array, [&] { fs::remove(array), fs::create_symlink(other, array); }},
      {array, [&] { fs::remove(array), fs::create_directory(array); }},
      {array, [&] { REQUIRE((fs::remove(array) && ::mkfifo(array.c_str(), 0600) == 0)); }},
      {array,
       [&] {
         fs::rename(one + "/layer_00", temp / "l"),
             fs::create_directory_symlink(temp / "l", one + "/layer_00");
       }},
      {record, [&] { fs::remove(record); }},
      {record, [&] { write_file(record, ""); }},
      {record, [&] { write_file(record, changed(file_text(record), 30)); }},
      {record, [&] { write_file(record, file_text(record) + "x"); }},
      {record, [&] { fs::rename(record, temp / "f"), fs::create_symlink(temp / "f", record); }},
  };
  const auto& [file, damage] = damages[GENERATE(range(0u, 14u))];
  damage();
  const ProcessResult merged = run_kvreplay({"merge", one, temp / "2", "--out", out});
  CHECK(merged.code == 2);
  CHECK(lines(merged.err) == 1);
  INFO(merged.err);
  CHECK(contains(merged.err, file.string() + ": expected "));
  CHECK_FALSE(fs::exists(out + "/summary.json"));
}

TEST_CASE("a merge onto a full disk goes on once there is room", "[cli][merge]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "m";
  make_dump(dump);
  run_parts({"tokens", dump}, temp, 2);
  std::vector<std::string> merge = {"merge", temp / "1", temp / "2", "--out", out, "--quiet"};
  const ProcessResult full = run_kvreplay(merge, {.folder = {}, .largest_file = 1500});
  CHECK(full.code == 2);
  CHECK(lines(full.err) == 1);
  CHECK(contains(full.err, "cannot be written"));
  CHECK_FALSE(has_half_written(out));
  CHECK_FALSE(fs::exists(out + "/summary.json"));
  merge.emplace_back("--resume");
  CHECK(run_kvreplay(merge).code == 0);
  CHECK(difference(out, temp / "whole").empty());
}
