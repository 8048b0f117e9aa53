#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <random>

// Layers with a sliding window hold the positions that a later row can see. A dump with only these positions
// has everything that rows behind the prompt need, so both dumps must give equal results.

using namespace kvreplay;
using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kPrompt = 60, kAll = 72, kWindow = 21, kHeld = kWindow - 1, kFirst = kPrompt - kHeld;
constexpr std::size_t kKvHeads = 2, kQueryHeads = 4, kChannels = 8;

/// Writes a tensor's positions from `first` on. The numbers depend on the seed, not on `first`.
void write_tensor(const fs::path& path, std::size_t heads, std::size_t first, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t p = 0; p < kAll; ++p)
      for (std::size_t c = 0; c < kChannels; ++c) {
        const float x = normal(random);
        if (p >= first) values.push_back(x);
      }
  fs::create_directories(path.parent_path());
  const std::size_t shape[] = {heads, kAll - first, kChannels};
  write_npy(AtomicFile(path), shape, std::span<const float>(values));
}

/// Layers of these windows (0: none), in one dump of the positions from `first` on.
void make_dump(const fs::path& folder, const std::vector<std::size_t>& windows, std::size_t first,
               std::size_t queries_from) {
  for (std::size_t layer = 0; layer < windows.size(); ++layer) {
    const fs::path of_layer = folder / fmt::format("layer_{:02}", layer);
    const auto seed = static_cast<unsigned>(10 * layer);
    write_tensor(of_layer / "q.npy", kQueryHeads, queries_from, seed);
    write_tensor(of_layer / "k.npy", kKvHeads, first, seed + 1);
    write_tensor(of_layer / "v.npy", kKvHeads, first, seed + 2);
  }
  Json manifest = {{"model", "windows"}, {"prompt_len", kPrompt - first}, {"scale", 0.35}};
  for (const std::size_t window : windows)
    manifest["sliding_window"].push_back(window == 0 ? Json() : Json(window));
  write_file(folder / "manifest.json", manifest.dump());
}

ProcessResult evict(const TempDir& temp, const std::string& dump, const std::string& out,
                    const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"evict",       temp / dump, "--out",     temp / out,
                                        "--precision", "f64",       "--threads", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return succeed(arguments);
}

/// Values of layer 0 on the future rows, or without rows, by their keys.
std::map<std::string, std::string> of_layer_0(const fs::path& results) {
  std::map<std::string, std::string> values;
  const Evictions evictions(results);
  for (const CsvRow& row : evictions.rows())
    if (row.at("layer") == "0" && row.at("rows") != "window")
      values[fmt::format("{},{},{},{},{},{},{}", row.at("kv_head"), row.at("policy"), row.at("phase"),
                         row.at("budget"), row.at("kept"), row.at("rows"), row.at("metric"))] =
          row.at("value");
  return values;
}

std::size_t ones(const std::string& data, std::size_t begin, std::size_t end) {
  return static_cast<std::size_t>(std::count(data.begin() + static_cast<std::ptrdiff_t>(begin),
                                             data.begin() + static_cast<std::ptrdiff_t>(end), '\x01'));
}

}  // namespace

TEST_CASE("a windowed layer has the results of a dump that ends where it does", "[cli][windows]") {
  const TempDir temp;
  make_dump(temp / "whole", {kWindow}, 0, kPrompt);
  make_dump(temp / "held", {kWindow}, kFirst, kPrompt);
  const std::vector<std::vector<std::string>> runs = {
      {"--policy", "knorm,streaming,score:knorm", "--sinks", "0", "--keep", "50%,25%,5,20"},
      {"--policy", "oracle,oracle_exact,greedy_exact,exchange", "--on", "future", "--keep", "50%,3"},
      {"--policy", "none,knorm", "--bits", "4,k2v4,fp8", "--group", "8", "--residual", "4", "--keep", "50%"},
      {"--policy", "knorm,streaming", "--sinks", "0", "--phase", "decode,append-only", "--keep", "50%,3"},
      {"--policy", "knorm", "--compensate", "mean", "--keep", "50%"},
      {"--policy", "quest[page=4],top_k", "--keep", "40%"},
      {"--policy", "knorm[page=4],score:knorm[page=1]", "--keep", "8"}};
  for (std::size_t n = 0; n < runs.size(); ++n) {
    const std::vector<std::string>& options = runs[n];
    INFO(fmt::format("{}", fmt::join(options, " ")));
    const std::string name = std::to_string(n);
    evict(temp, "whole", "whole" + name, options);
    evict(temp, "held", "held" + name, options);
    const auto whole = of_layer_0(temp / ("whole" + name)), held = of_layer_0(temp / ("held" + name));
    REQUIRE(whole.size() == held.size());
    for (const auto& [what, value] : held) {
      INFO(what);
      REQUIRE(whole.contains(what));
      if (value.empty()) {  // the recall of nothing
        CHECK(whole.at(what).empty());
        continue;
      }
      CHECK(std::stod(whole.at(what)) == Approx(std::stod(value)).epsilon(1e-9).margin(1e-14));
    }
  }
}

TEST_CASE("budgets, kept sets and bytes are of what each layer holds", "[cli][windows]") {
  const TempDir temp;
  make_dump(temp / "dump", {kWindow, 0, 1, 1000}, 0, 0);
  const ProcessResult run = evict(temp, "dump", "r",
                                  {"--policy", "none,snapkv,h2o,tova,streaming", "--keep", "50%,30", "--bits",
                                   "16,8", "--residual", "0", "--group", "8"});
  CHECK(run.out.find("2 of 4 layers hold the last 0 to 20 of 60 prompt tokens (sliding window)") !=
        std::string::npos);
  const Evictions evictions(temp / "r");
  const double token = 2 * 8 * 2;  // bytes of a key and a value in 16 bits
  const auto bytes = [&](const std::string& scope, const std::string& policy, const std::string& budget) {
    return evictions.at(scope, fmt::format("{},paper,prefill,{}", policy, budget), "", "bytes");
  };
  CHECK(bytes("0,", "none~16", "") == 2 * kHeld * token);
  CHECK(bytes("1,", "none~16", "") == 2 * kPrompt * token);
  CHECK(bytes("2,", "none~16", "") == 0);
  CHECK(bytes("3,", "none~16", "") == 2 * kPrompt * token);
  CHECK(bytes(",", "none~16", "") == 2 * (kHeld + 2 * kPrompt) * token);
  CHECK(Json::parse(file_text(temp / "r" / "summary.json"))["totals"]["prompt_bytes"] ==
        2 * (kHeld + 2 * kPrompt) * token);
  // Keys in groups of 8 tokens, of which 4 are too few; a step and a minimum of 2 bytes each for each group.
  CHECK(bytes("0,1", "none~8", "") == 16 * 8 + 2 * 8 * 4 + 4 * 8 * 2 + kHeld * (8 + 4));
  for (const std::string policy : {"snapkv~16", "h2o~16", "tova~16", "streaming~16"}) {
    INFO(policy);
    CHECK(bytes("0,", policy, "0.5") == 2 * (kHeld / 2) * token);  // a share of the positions held
    CHECK(bytes("0,", policy, "30") == 2 * kHeld * token);         // budgets in tokens are capped at kHeld
    CHECK(bytes("1,", policy, "0.5") == 2 * (kPrompt / 2) * token);
    CHECK(bytes("2,", policy, "30") == 0);
    const std::string base = policy.substr(0, policy.find('~'));
    const Npy kept = npy_file(temp / "r" / "layer_00" / "kept" / (base + "~16-paper-prefill-30.npy"));
    for (std::size_t head = 0; head < kKvHeads; ++head)
      CHECK(ones(kept.data, head * kPrompt, head * kPrompt + kFirst) == 0);
  }
  // Error 0 if the budget holds everything; on rows of the prompt too, although these rows see more.
  for (const char* rows : {"window", "future"})
    for (const char* scope : {"0,", "2,"})
      CHECK(evictions.at(scope, "snapkv~16,paper,prefill,30", rows, "output_error") == 0);
  // File names use the token count of the layer that holds most, and each budget has one row in the file.
  CHECK(evictions.at("0,0", "streaming~16,paper,prefill,0.5", "future", "oracle_recall") <= 1);

  evict(temp, "dump", "reserved", {"--policy", "none", "--bits", "16", "--window-bytes", "reserved"});
  CHECK(Evictions(temp / "reserved").at(",", "none,paper,prefill,", "", "bytes") == 8 * kPrompt * token);
  const std::string refused =
      run_kvreplay({"evict", temp / "dump", "--out", temp / "x", "--window-bytes", "all"}).err;
  CHECK(refused.find("--window-bytes") != std::string::npos);
}

TEST_CASE("kept sets of the user's are cut to what is held", "[cli][windows]") {
  const TempDir temp;
  make_dump(temp / "dump", {kWindow}, 0, kPrompt);
  write_file(temp / "mine.npy",
             npy("|b1", {1, kKvHeads, kPrompt}, std::vector<std::uint8_t>(kKvHeads * kPrompt, 1)).bytes());
  evict(temp, "dump", "r", {"--policy", "none", "--kept", "mine=" + std::string(temp / "mine.npy")});
  const Evictions evictions(temp / "r");
  CHECK(evictions.at(",", "mine,given,prefill,", "future", "output_error") == 0);
  CHECK(evictions.at("0,0", "mine,given,prefill,", "", "bytes") == kHeld * 2 * 8 * 2);
}

TEST_CASE("head budgets are shared between layers that hold equally much", "[cli][windows]") {
  const TempDir temp;
  make_dump(temp / "dump", {kWindow, 0, kWindow, 0}, 0, 0);
  std::map<std::string, double> tokens;
  for (const auto& [option, values] : {std::pair{"--sigma", "0.5,0.8"}, {"--budget", "15"}}) {
    succeed({"budget", temp / "dump", "--out", temp / option, "--order", "keydiff", "--semantics", "raw",
             option, values});
    const std::string table = temp / option / "budgets.csv", text = file_text(table);
    for (const CsvRow& row : csv_rows(table, text.substr(0, text.find('\n')))) {
      if (row.at("kv_head").empty()) continue;
      const bool windowed = row.at("layer") == "0" || row.at("layer") == "2";
      const double budget = std::stod(row.at("budget"));
      CHECK(budget <= static_cast<double>(windowed ? kHeld : kPrompt));
      tokens[fmt::format("{} {} {}", row.at("method"), row.at("sigma"), windowed)] += budget;
    }
  }
  for (const auto& [what, sum] : tokens) {
    INFO(what);
    const double held = what.ends_with("true") ? kHeld : kPrompt;
    const bool half = what.find(" 0.5 ") != std::string::npos,
               fifth = what.find(" 0.8 ") != std::string::npos;
    CHECK(sum == 4 * (half ? held / 2 : fifth ? std::floor(held / 5) : 15));
  }
  CHECK(tokens.size() >= 3 * 2 * 3);
}
