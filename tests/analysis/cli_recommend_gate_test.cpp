#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

// The setting that `kvreplay recommend` takes when candidates do not differ significantly, and limits for
// continuous integration.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

fs::path levers_of(const TempDir& temp, int prompts) {
  std::vector<std::string> evict{"evict"};
  for (int seed = 1; seed <= prompts; ++seed) {
    evict.push_back(temp / fmt::format("dump{}", seed));
    succeed({"synth", evict.back(), "--layers", "2", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "32",
             "--prompt", "96", "--decode", "6", "--gradients", "4", "--seed", fmt::format("{}", seed),
             "--quiet"});
  }
  succeed(joined(evict, {"--out", temp / "levers", "--policy", "none,streaming,h2o", "--keep", "75%,50%,25%",
                         "--bits", "16,8,4,2", "--residual", "0", "--group", "16", "--quiet"}));
  return temp / "levers";
}

double worst_of(const fs::path& results, int prompts, const std::string& of) {
  double worst = 0;
  for (int seed = 1; seed <= prompts; ++seed)
    worst =
        std::max(worst, Evictions(results / fmt::format("dump{}", seed)).at(",", of, "future", "loss_step"));
  return worst;
}

int complexity(const Json& candidate) {
  return (candidate.at("where") == "each" ? 2 : 0) + (candidate.at("levers") == "tokens and bits" ? 1 : 0);
}

/// "both-each", as in the names of recipes.
std::string way_of(const Json& candidate) {
  const std::string levers = candidate.at("levers"), where = candidate.at("where");
  return (levers == "tokens and bits" ? "both" : levers.substr(0, levers.find(' '))) + "-" + where;
}

/// Measurements in the model of one case, as kvvalidate.py writes them.
void validate(const fs::path& results, const std::string& kl, const std::string& same) {
  write_file(results / "validate.csv",
             fmt::format("policy,semantics,phase,budget,kept,protocol,metric,value\n"
                         "none~4,paper,prefill,,96,stored,kl,{0}\nnone~4,paper,prefill,,96,stored,same_top1,"
                         "{1}\n",
                         kl, same));
  const Json summary = Json::parse(file_text(results / "summary.json"));
  write_file(results / "validate.json",
             Json{{"results", summary.at("files_xxh3")}, {"finished", true}}.dump());
}

}  // namespace

TEST_CASE("the simplest setting that is not told apart is taken", "[recommend]") {
  const TempDir temp;
  const fs::path results = levers_of(temp, 5);
  bool simpler = false;
  for (const std::string bytes : {"45%", "25%", "18%"}) {
    INFO(bytes);
    const Json found = Json::parse(
        succeed({"recommend", results, "--bytes", bytes, "--json", "--out", temp / "taken.json"}).out);
    const Json& one = found.at("recommendations").at(0);
    const Json &lowest = one.at("candidates").at(0),
               written = Json::parse(file_text(temp / "taken.json")).at("chosen");
    CHECK(way_of(written) == one.at("taken"));
    CHECK(complexity(written) <= complexity(lowest));
    const bool is_lowest = written.at("text") == lowest.at("text");
    simpler = simpler || !is_lowest;
    const std::string report = found.at("report");
    CHECK((report.find("simplest, not told apart from the lowest: ") != std::string::npos) != is_lowest);
  }
  CHECK(simpler);
  // Below four prompts nothing is told apart, and the lowest mean is taken.
  const Json few = Json::parse(
      succeed({"recommend", results, "--bytes", "20%", "--json", "--without", "dump1,dump2"}).out);
  const Json& lowest = few.at("recommendations").at(0).at("candidates").at(0);
  CHECK(few.at("recommendations").at(0).at("taken") == way_of(lowest));
}

TEST_CASE("a measured case passes up to the loss of its worst prompt", "[recommend]") {
  const TempDir temp;
  const fs::path results = levers_of(temp, 3);
  const double worst = worst_of(results, 3, "none~4,paper,prefill,"),
               evicted = worst_of(results, 3, "h2o~4,paper,prefill,0.5");
  const auto run = [&](const std::string& name, double limit) {
    return run_kvreplay({"recommend", results, "--check", name, "--fail-above", fmt::format("{:.12g}", limit),
                         "--junit", temp / "j.xml"});
  };
  for (const auto& [name, loss] :
       {std::pair<std::string, double>("4", worst), {"none~4", worst}, {"h2o~4@0.5", evicted}}) {
    INFO(name);
    const auto passed = run(name, loss * 1.001), failed = run(name, loss * 0.999);
    CHECK(passed.code == 0);
    CHECK(passed.out.starts_with("passes: "));
    CHECK(failed.code == 1);
    CHECK(failed.out.starts_with("fails: "));
    CHECK(std::count(failed.out.begin(), failed.out.end(), '\n') == 1);
    const std::string xml = file_text(temp / "j.xml");
    CHECK(contains(xml, "tests=\"3\" failures=\"1\""));
    CHECK(contains(xml, "<failure message="));
  }
  // Measured losses take the place of predictions, and changed tokens count, too.
  for (int seed = 1; seed <= 3; ++seed)
    validate(results / fmt::format("dump{}", seed), seed == 2 ? "0.5" : "0.25", seed == 3 ? "0.75" : "1");
  CHECK(run("4", 0.5).code == 0);
  CHECK(contains(run("4", 0.49).out, "worst prompt dump2: 0.5 (nats, true KL), limit 0.49"));
  CHECK(run_kvreplay({"recommend", results, "--check", "4", "--fail-flips", "0.25"}).code == 0);
  const auto flips = run_kvreplay({"recommend", results, "--check", "4", "--fail-flips", "0.2", "--json"});
  CHECK(flips.code == 1);
  CHECK(Json::parse(flips.out).at("prompts").at(2).at("flips") == 0.25);
  CHECK_FALSE(Json::parse(flips.out).at("prompts").at(2).at("passes"));
}

TEST_CASE("a choice passes up to its loss on the worst prompt that did not choose it", "[recommend]") {
  const TempDir temp;
  const fs::path results = levers_of(temp, 3);
  const std::vector<std::string> asked{"recommend", results, "--bytes", "30%"};
  const Json found = Json::parse(succeed(joined(asked, {"--json"})).out);
  const double worst = found.at("recommendations").at(0).at("candidates").at(0).at("worst").at("cost");
  CHECK(run_kvreplay(joined(asked, {"--fail-above", fmt::format("{:.12g}", worst * 1.001)})).code == 0);
  const auto failed = run_kvreplay(joined(asked, {"--fail-above", fmt::format("{:.12g}", worst * 0.999)}));
  CHECK(failed.code == 1);
  CHECK(contains(failed.out, "fails: within 30%"));
  // A budget that nothing fits into does not pass.
  CHECK(run_kvreplay({"recommend", results, "--bytes", "1%", "--fail-above", "9"}).code == 1);
}

TEST_CASE("limits that cannot be judged are refused", "[recommend]") {
  const TempDir temp;
  const fs::path results = levers_of(temp, 1);
  const auto refused = [&](const std::vector<std::string>& more) {
    return complaint(joined({"recommend", results}, more));
  };
  CHECK(contains(refused({"--check", "5", "--fail-above", "1"}), "--check: expected some of "));
  CHECK(contains(refused({"--check", "4"}), "--check: expected a limit"));
  CHECK(contains(refused({"--check", "4", "--fail-flips", "0.1"}), "a case that kvvalidate.py measured"));
  CHECK(contains(refused({"--bytes", "20%", "--fail-flips", "0.1"}), "--fail-flips: expected --check CASE"));
  CHECK(contains(refused({"--bytes", "20%", "--check", "4", "--fail-above", "1"}), "nothing is chosen"));
  CHECK(contains(refused({"--bytes", "20%", "--junit", temp / "x.xml"}), "--junit: expected a limit"));
  CHECK(contains(refused({}), "--bytes: expected the size of the cache"));

  // A model takes the place of results, and needs prompts and a folder.
  CHECK(contains(refused({"--bytes", "20%", "--model", "m.gguf"}),
                 "RESULTS: expected result folders of evict"));
  CHECK(contains(refused({"--bytes", "20%", "--prompts", "x.txt"}), "--model: expected the model"));
  const auto from_model = [&](const std::vector<std::string>& more) {
    return complaint(joined({"recommend", "--bytes", "41%"}, more));
  };
  CHECK(contains(from_model({}), "RESULTS: expected result folders of evict, or --model with --prompts"));
  CHECK(contains(from_model({"--model", "m.gguf"}), "--prompts: expected texts or conversations"));
  CHECK(contains(from_model({"--model", "m.gguf", "--prompts", "x.txt"}), "--work: expected a folder"));
  fs::create_directory(temp / "empty");
  CHECK(contains(from_model({"--model", "m.gguf", "--prompts", temp / "empty", "--work", temp / "w"}),
                 "expected texts (.txt) or conversations"));
}
