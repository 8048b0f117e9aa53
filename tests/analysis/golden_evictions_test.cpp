#include "tests/analysis/golden_arrays.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

// The sample dump's kept sets and head budgets against those of NVIDIA kvpress 0.5.4 itself
// (tests/golden/kvpress/README.md).

using namespace kvreplay::test;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kLayers = 6, kHeads = 2, kTokens = 896;
constexpr const char* kGolden = "kvpress-0.5.4.pystdlib-lm";

Json golden_facts() {
  return Json::parse(
      file_text(fmt::format("{}/tests/golden/kvpress/{}.json", source_dir().string(), kGolden)));
}

void run_budget(const std::string& out, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"budget",      sample_dump(), "--out",   out,
                                        "--semantics", "kvpress",     "--order", "keydiff",
                                        "--quiet",     "--precision", "f64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
}

/// Budgets of a method by sigma, layer and head.
std::map<std::tuple<std::string, std::size_t, std::size_t>, int> budgets_of(const std::string& folder,
                                                                            const std::string& method) {
  std::map<std::tuple<std::string, std::size_t, std::size_t>, int> budgets;
  for (const CsvRow& row :
       csv_rows(folder + "/budgets.csv",
                "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error"))
    if (row.at("method") == method && !row.at("kv_head").empty())
      budgets[{row.at("sigma"), std::stoul(row.at("layer")), std::stoul(row.at("kv_head"))}] =
          std::stoi(row.at("budget"));
  return budgets;
}

}  // namespace

TEST_CASE("kept sets equal kvpress' token for token", "[golden][evict]") {
  const TempDir temp;
  succeed({"evict", sample_dump(), "--out", temp / "r", "--precision", "f64", "--semantics", "kvpress",
           "--sigma", "0.5,0.8,0.9", "--policy", "streaming,h2o,tova,snapkv,knorm,keydiff,expected_attention",
           "--quiet"});
  const std::map<std::string, Npy> golden = golden_arrays(kGolden);
  const Json facts = golden_facts();
  std::size_t sets = 0, ties = 0;
  for (const char* policy : {"streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention"})
    for (const auto& [sigma, count] : {std::pair{"0.5", 448}, {"0.8", 179}, {"0.9", 89}}) {
      const std::string name = fmt::format("{}-{}", policy, sigma);
      const Npy& bits = golden.at(name + ".kept.npy");
      REQUIRE(bits.descr == "|u1");
      REQUIRE(bits.shape == std::vector<std::size_t>{kLayers, kHeads, kTokens / 8});
      const std::vector<bool> want = unpacked(bits);

      // `topk` promises no order among equal scores: tokens at the cut whose scores are equal may change
      // places
      std::set<std::size_t> tied;
      const Json& set = facts.at("kept_sets").at(name);
      for (const Json& at : set.value("tied_positions", Json::array()))
        tied.insert((at[0].get<std::size_t>() * kHeads + at[1].get<std::size_t>()) * kTokens +
                    at[2].get<std::size_t>());
      REQUIRE(tied.size() == set.at("tied").get<std::size_t>());
      ties += tied.size();

      for (std::size_t layer = 0; layer < kLayers; ++layer) {
        const Npy got = npy_file(temp / "r" / fmt::format("layer_0{}", layer) / "kept" /
                                 fmt::format("{}-kvpress-prefill-{}.npy", policy, count));
        REQUIRE(got.shape == std::vector<std::size_t>{kHeads, kTokens});
        for (std::size_t i = 0; i < kHeads * kTokens; ++i) {
          const std::size_t at = layer * kHeads * kTokens + i;
          if (tied.count(at) != 0) continue;
          INFO(name << " layer " << layer << " KV head " << i / kTokens << " position " << i % kTokens);
          REQUIRE((got.data[i] != 0) == want[at]);
        }
        for (std::size_t head = 0; head < kHeads; ++head)
          CHECK(std::count(got.data.begin() + static_cast<std::ptrdiff_t>(head * kTokens),
                           got.data.begin() + static_cast<std::ptrdiff_t>((head + 1) * kTokens),
                           '\x01') == set.at("n_kept")[layer][head].get<int>());
        ++sets;
      }
    }
  CHECK(sets == 7 * 3 * kLayers);
  CHECK(ties < sets);  // a comparison that leaves everything out compares nothing
}

TEST_CASE("pyramid budgets equal kvpress'", "[golden][budget]") {
  const TempDir temp;
  run_budget(temp / "r", {"--method", "pyramid", "--sigma", "0.1,0.3,0.5,0.6,0.7,0.8,0.9"});
  const auto budgets = budgets_of(temp / "r", "pyramid");
  std::size_t compared = 0;
  const Json facts = golden_facts();
  for (const Json& one : facts.at("pyramid_budgets")) {
    if (one.at("window") != 64 || one.at("beta") != 20) continue;  // kvpress' own
    const std::string sigma = fmt::format("{}", one.at("sigma").get<double>());
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      for (std::size_t head = 0; head < kHeads; ++head, ++compared) {
        INFO("sigma " << sigma << " layer " << layer << " KV head " << head);
        CHECK(budgets.at({sigma, layer, head}) == one.at("n_kept")[layer].get<int>());
      }
  }
  CHECK(compared == 7 * kLayers * kHeads);
}

TEST_CASE("a profile read as kvpress reads it gives its LU-KV's budgets", "[golden][budget]") {
  const TempDir temp;
  const std::map<std::string, Npy> golden = golden_arrays(kGolden);
  write_file(temp / "curves.npy", golden.at("lu_curves.npy").bytes());
  run_budget(temp / "r", {"--method", "uniform", "--sigma", "0.5,0.8,0.9", "--profile", temp / "curves.npy"});
  const auto budgets = budgets_of(temp / "r", "profile");
  const Json facts = golden_facts();
  for (const char* sigma : {"0.5", "0.8", "0.9"}) {
    const std::string name = fmt::format("lu_expected_attention-{}", sigma);
    const Json& kept = facts.at("kept_sets").at(name).at("n_kept");
    const std::vector<bool> want = unpacked(golden.at(name + ".kept.npy"));
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      for (std::size_t head = 0; head < kHeads; ++head) {
        INFO(name << " layer " << layer << " KV head " << head);
        CHECK(budgets.at({sigma, layer, head}) == kept[layer][head].get<int>());
        const auto begin = want.begin() + static_cast<std::ptrdiff_t>((layer * kHeads + head) * kTokens);
        CHECK(std::count(begin, begin + kTokens, true) == kept[layer][head].get<int>());
      }
  }
}
