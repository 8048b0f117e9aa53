#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <regex>
#include <set>

// analyze takes the options of its parts.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

Json options_of(const fs::path& results) {
  return Json::parse(file_text(results / "summary.json"))["options"];
}

/// Few figures of every part.
const std::vector<std::string> kFew = {"--metrics", "attn,exact_key", "--policy", "h2o,snapkv", "--order",
                                       "snapkv",    "--ratio",        "0.5",      "--backend",  "cpu",
                                       "--quiet"};

}  // namespace

TEST_CASE("analyze gives every part its options, and writes what the parts write alone", "[cli][parts]") {
  const TempDir temp;
  const std::string dump = temp / "dump", config = temp / "run.toml";
  make_small_dump(dump);
  const auto run = [&](const std::string& command, const std::string& out,
                       const std::vector<std::string>& options) {
    succeed(joined(joined({command, dump, "--out", temp / out}, options), {"--quiet"}));
  };
  run("analyze", "all",
      {"--window",
       "16",
       "--sigma",
       "0.5",
       "--semantics",
       "kvpress",
       "--recent",
       "3",
       "--sinks",
       "2",
       "--per-query-head",
       "--metrics",
       "attn,exact_key",
       "--policy",
       "h2o,snapkv[pool=5]",
       "--order",
       "snapkv",
       "--budget.method",
       "uniform,lu",
       "--channels.method",
       "think,iap",
       "--channels.recent",
       "9",
       "--ratio",
       "0.5"});
  const std::vector<std::string> window = {"--window", "16"},
                                 budgets = {"--sigma", "0.5", "--recent", "3", "--sinks", "2"};
  run("tokens", "tokens", joined(window, {"--metrics", "attn,exact_key", "--per-query-head"}));
  run("evict", "evict",
      joined(joined(window, budgets),
             {"--semantics", "kvpress", "--policy", "h2o,snapkv[pool=5]", "--per-query-head"}));
  run("budget", "budget",
      joined(budgets, {"--semantics", "kvpress", "--order", "snapkv", "--method", "uniform,lu"}));
  run("channels", "channels",
      joined(window, {"--semantics", "kvpress", "--method", "think,iap", "--recent", "9", "--ratio", "0.5"}));
  const auto all = contents(temp / "all");
  for (const char* part : {"tokens", "evict", "budget", "channels"}) {
    CHECK(options_of(temp / "all")[part] == options_of(temp / part)[part]);
    for (const auto& [name, bytes] : contents(temp / part))
      if (name != "summary.json" && name != "files.csv") {
        INFO(part << " " << name);
        REQUIRE(all.count(name) == 1);
        CHECK(all.at(name) == bytes);
      }
  }
  write_file(
      config,
      "window = 16\nsigma = [0.5]\nsemantics = \"kvpress\"\nrecent = 3\nsinks = 2\nper-query-head = true\n"
      "[tokens]\nmetrics = [\"attn\", \"exact_key\"]\n[evict]\npolicy = [\"h2o\", \"snapkv[pool=5]\"]\n"
      "[budget]\norder = [\"snapkv\"]\nmethod = [\"uniform\", \"lu\"]\n"
      "[channels]\nmethod = [\"think\", \"iap\"]\nrecent = 9\nratio = [0.5]\n");
  run("analyze", "toml", {"--config", config});
  CHECK(difference(temp / "all", temp / "toml").empty());
  // what one part is told goes before what all are told, and the command line before the file
  run("analyze", "own", joined({"--config", config, "--evict.window", "8"}, {"--sinks", "1"}));
  CHECK(options_of(temp / "own")["evict"]["window"] == 8);
  CHECK(options_of(temp / "own")["tokens"]["window"] == Json::array({16}));
  CHECK(options_of(temp / "own")["budget"]["sinks"] == 1);
  write_file(config, "evict.window = 5\nchannels.window = 6\n");
  run("analyze", "line", joined({"--config", config, "--window", "7", "--channels.window", "8"}, kFew));
  CHECK(options_of(temp / "line")["evict"]["window"] == 7);
  CHECK(options_of(temp / "line")["tokens"]["window"] == Json::array({7}));
  CHECK(options_of(temp / "line")["channels"]["window"] == 8);
}

TEST_CASE("analyze uses a score of the user's in every part that takes one", "[cli][parts]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  std::vector<double> values(2 * 2 * 61);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i * i));
  write_file(temp / "mine.npy", npy("<f8", {2, 2, 61}, values).bytes());
  const std::string given = "mine=" + (temp / "mine.npy").string();
  const ProcessResult done =
      succeed({"analyze", dump, "--out", temp / "r", "--score", given, "--only", "tokens,evict,budget"});
  CHECK(contains(done.out, "\n  mine  "));
  CHECK(contains(done.out, "\nscore:mine  "));
  CHECK(contains(file_text(temp / "r/agreement.csv"), ",mine,exact_remove,"));
  CHECK(contains(file_text(temp / "r/evictions.csv"), ",score:mine,paper,prefill,0.5,"));
  CHECK(contains(file_text(temp / "r/budgets.csv"), ",mine,uniform,0.5,"));
  // the default policies are as without it
  succeed({"analyze", dump, "--out", temp / "plain", "--only", "tokens,evict,budget", "--quiet"});
  const auto all = contents(temp / "r");
  for (const auto& [name, bytes] : contents(temp / "plain"))
    if (name.ends_with(".npy")) {
      INFO(name);
      REQUIRE(all.count(name) == 1);
      CHECK(all.at(name) == bytes);
    }
  const ProcessResult one = succeed({"analyze", dump, "--out", temp / "one", "--evict.score", given,
                                     "--policy", "snapkv+mine,score:mine", "--only", "evict", "--quiet"});
  CHECK(options_of(temp / "one")["evict"]["policies"] == Json({"snapkv+mine", "score:mine"}));
}

TEST_CASE("mistakes in a part's section of a file name the part, the file and the line", "[cli][parts]") {
  const TempDir temp;
  const std::string dump = temp / "dump", config = temp / "run.toml";
  make_small_dump(dump);
  for (const auto& [text, part] :
       {std::pair{"[evict]\npolcy = \"h2o\"\n",
                  "line 2: unknown key 'evict.polcy'; did you mean 'evict.policy'"},
        {"[evikt]\npolicy = \"h2o\"\n",
         "line 1: expected options at the top level, or in a section tokens, evict, budget, channels, found "
         "'evikt'"},
        {"[evict.policy]\nx = 1\n",
         "line 1: expected options at the top level, or in a section tokens, evict, budget, channels, found "
         "'evict.policy'"},
        {"quiet = true\n[channels]\nwindow = \"x\"\n",
         "line 3: --channels.window: expected a whole number"}}) {
    write_file(config, text);
    const std::string said = refusal({"analyze", dump, "--config", config}, temp / "r");
    INFO(said);
    CHECK(contains(said, config + ": " + part));
  }
}

TEST_CASE("the help of analyze has every option of its parts once, by part", "[cli][parts]") {
  const std::string help = run_kvreplay({"analyze", "--help"}).out;
  const auto listed = [](const std::string& text) {
    std::multiset<std::string> names;
    const std::regex name("\n  (?:-\\w,)?--([\\w.-]+)");
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
      names.insert((*at)[1]);
    return names;
  };
  const std::multiset<std::string> all = listed(help);
  for (const std::string& option : all) {
    INFO(option);
    CHECK(all.count(option) == 1);
  }
  const std::set<std::string> common = {"backend", "config", "force",     "help",       "json",
                                        "layers",  "out",    "precision", "prompt-len", "quiet",
                                        "resume",  "shard",  "threads"};
  for (const std::string part : {"tokens", "evict", "budget", "channels"}) {
    CHECK(contains(help, "\nOptions of " + part + " (--" + part + ".NAME too):\n"));
    for (const std::string& option : listed(run_kvreplay({part, "--help"}).out)) {
      if (common.count(option) == 1) continue;
      INFO(part << " " << option);
      CHECK(all.count(option) + all.count(fmt::format("{}.{}", part, option)) > 0);
    }
  }
  for (const char* both : {"method", "recent"}) {
    INFO(both);
    CHECK(all.count(fmt::format("channels.{}", both)) == 1);
  }
  CHECK(all.count("method") == 0);
  CHECK(all.count("recent") == 1);
}
