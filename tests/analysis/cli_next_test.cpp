#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

// The last line of a command's output: the commands to type next.

using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

/// The text behind "next: " on the last line.
std::string next_of(const std::string& out) {
  const std::string text = out.substr(0, out.size() - 1);
  const std::string last = text.substr(text.rfind('\n') + 1);
  INFO(out);
  REQUIRE(last.starts_with("next: "));
  return last.substr(6);
}

/// Runs the first command of a "next:" line in a shell.
ProcessResult type(const std::string& next) {
  const std::string first = next.substr(0, next.find(", or "));
  INFO(first);
  REQUIRE(first.starts_with("kvreplay "));
  const std::string program = kvreplay_command({}).front();
  Process process({"/bin/sh", "-c", fmt::format("'{}'{}", program, first.substr(8))});
  const ProcessResult result = process.wait();
  INFO(result.err);
  CHECK(result.code == 0);
  return result;
}

}  // namespace

TEST_CASE("every command that writes results ends with what to type next", "[next]") {
  const TempDir temp;
  const std::string a = temp / "it's a", b = temp / "b";
  for (const std::string& dump : {a, b}) {
    const std::string next = next_of(succeed({"synth", dump, "--layers", "2", "--q-heads", "4", "--kv-heads",
                                              "2", "--head-dim", "16", "--prompt", "80", "--decode", "6"})
                                         .out);
    CHECK(contains(next, "kvreplay analyze "));
    CHECK(contains(next, " --out results/" + std::string(dump == a ? "it" : "b")) == (dump == b));
  }
  CHECK(contains(next_of(succeed({"info", b}).out), "kvreplay analyze " + b));
  CHECK(contains(next_of(succeed({"info", b, "--prompt-len", "70"}).out), " --prompt-len 70"));
  CHECK(contains(next_of(succeed({"verify", b}).out), "kvreplay analyze " + b));
  for (const std::string command : {"tokens", "evict", "budget", "channels", "analyze"}) {
    const std::string one = temp / (command + " one"), several = temp / (command + "s");
    const std::string next = next_of(succeed({command, a, "--out", one}).out);
    type(next);
    CHECK(contains(next, fmt::format("kvreplay report '{}'", one)));
    CHECK(next.starts_with("kvreplay recommend") == (command == "evict"));
    CHECK(next_of(succeed({command, a, "--out", one, "--resume"}).out) == next);
    type(next_of(succeed({command, a, b, "--out", several}).out));
    CHECK(succeed({command, b, "--out", temp / (command + "-quiet"), "--quiet"}).out.empty());
    CHECK_FALSE(contains(succeed({command, b, "--out", temp / (command + "-json"), "--json"}).out, "next:"));
  }
  // Results of several parts are joined first.
  for (const std::string part : {"1", "2"}) {
    const std::string next =
        next_of(succeed({"tokens", b, "--out", temp / ("part" + part), "--shard", part + "/2"}).out);
    CHECK(next.starts_with("kvreplay merge " + (temp / ("part" + part)).string()));
  }
  CHECK(contains(next_of(succeed({"merge", temp / "part1", temp / "part2", "--out", temp / "whole"}).out),
                 "kvreplay report " + (temp / "whole").string()));
  // Results that recommend cannot read get another next command.
  CHECK(next_of(succeed({"evict", b, "--out", temp / "oracle", "--policy", "oracle"}).out)
            .starts_with("kvreplay report"));
  CHECK(next_of(succeed({"evict", b, "--out", temp / "sinks", "--policy", "snapkv", "--sinks", "4"}).out)
            .starts_with("kvreplay report"));
  const std::string page = temp / "page.html";
  CHECK(next_of(succeed({"report", temp / "oracle", "--out", page}).out).starts_with("xdg-open " + page));
  CHECK(next_of(succeed({"compare", temp / "oracle", temp / "sinks", "--html", page}).out) ==
        "xdg-open " + page);
  CHECK(contains(next_of(succeed({"compare", temp / "oracle", temp / "sinks"}).out), "--html"));
}

TEST_CASE("recommend ends with how to validate its choice", "[next][recommend]") {
  const TempDir temp;
  std::vector<std::string> dumps;
  for (const std::string name : {"a", "b"}) {
    dumps.push_back(temp / name);
    make_small_dump(dumps.back(), {"--seed", name == "a" ? "1" : "2"});
  }
  const std::string levers = temp / "levers", recipe = temp / "recipe.json";
  succeed(joined(joined({"evict"}, dumps),
                 {"--out", levers, "--policy", "none,streaming", "--keep", "50%", "--bits", "16,4",
                  "--residual", "0", "--prompt-len", "50", "--quiet"}));
  // First the command that writes the recipe, then the recipe on the dumps, then in the model.
  const std::string with_file =
      next_of(succeed({"recommend", levers, "--bytes", "60%", "--by", "worst"}).out);
  CHECK(with_file == "kvreplay recommend " + levers + " --bytes 60% --by worst --out recipe.json");
  const std::string next = next_of(succeed({"recommend", levers, "--bytes", "60%", "--out", recipe}).out);
  CHECK(next == fmt::format("kvreplay evict {0} {1} --prompt-len 50 --recipe {2} --out {3}-recipe && python3 "
                            "data/capture/kvvalidate.py --model MODEL --dump {0} {1} --results {3}-recipe",
                            dumps[0], dumps[1], recipe, levers));
  const ProcessResult run = type(next.substr(0, next.find(" && ")));
  CHECK(next_of(run.out).starts_with(next.substr(next.find("python3"))));
  // If nothing fits, the command has bytes that something fits into.
  const std::string smaller = next_of(run_kvreplay({"recommend", levers, "--bytes", "1%"}).out),
                    usual_file = "recipe.json";
  REQUIRE(smaller.ends_with(" " + usual_file));
  type(smaller.substr(0, smaller.size() - usual_file.size()) + recipe + " --json");
  CHECK(succeed({"recommend", levers, "--bytes", "60%", "--quiet"}).out.empty());
}
