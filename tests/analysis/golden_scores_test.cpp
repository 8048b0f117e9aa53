#include "tests/analysis/golden_arrays.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

// The sample dump's scores against kvpress' LagKVPress and CURPress and the code of Q-Filters' and
// DefensiveKV's authors, and kept sets against kvpress 0.5.4 and 0.5.5 (tests/golden/kvpress/README.md).

using namespace kvreplay::test;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kLayers = 6, kHeads = 2, kTokens = 896;

std::vector<double> numbers_of(const Npy& array) {
  std::vector<double> all;
  const std::size_t size = array.descr == "<f4" ? 4 : 8;
  REQUIRE((array.descr == "<f4" || array.descr == "<f8"));
  for (std::size_t at = 0; at < array.data.size(); at += size) {
    float single = 0;
    double number = 0;
    std::memcpy(size == 4 ? static_cast<void*>(&single) : &number, array.data.data() + at, size);
    all.push_back(size == 4 ? static_cast<double>(single) : number);
  }
  return all;
}

}  // namespace

TEST_CASE("scores of the whole prompt equal those of published code", "[golden][tokens]") {
  const TempDir temp;
  succeed({"tokens", sample_dump(), "--out", temp / "r", "--precision", "f64", "--metrics",
           "lagkv,cur,qfilter,defensive,exact_remove", "--layers", "0,4", "--quiet"});
  const auto golden = golden_arrays("scores.pystdlib-lm");
  for (const char* metric : {"lagkv", "cur", "qfilter", "defensive"}) {
    const std::vector<double> want = numbers_of(golden.at(fmt::format("{}.npy", metric)));
    REQUIRE(want.size() == 2 * kHeads * kTokens);
    for (std::size_t at = 0; at < 2; ++at) {
      const std::vector<double> got = numbers_of(
          npy_file(temp / "r" / fmt::format("layer_0{}", 4 * at) / "tokens" / fmt::format("{}.npy", metric)));
      REQUIRE(got.size() == kHeads * kTokens);
      double largest = 0, off = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        // Their press gives the window the largest score of all heads.
        if (std::string_view(metric) == "defensive" && i % kTokens >= kTokens - 32) continue;
        const double other = want[at * kHeads * kTokens + i];
        largest = std::max(largest, std::abs(other));
        off = std::max(off, std::abs(got[i] - other));
      }
      INFO(metric << ", layer " << 4 * at << ": off by " << off << " of " << largest);
      CHECK(off <= 1e-6 * largest);  // the golden numbers are float32
    }
  }
}

TEST_CASE("thresholds keep what kvpress' DMSPress keeps", "[golden][evict]") {
  const TempDir temp;
  succeed({"evict", sample_dump(), "--out", temp / "r", "--precision", "f64", "--semantics", "kvpress",
           "--policy",
           "knorm[threshold=-9,recent=128],keydiff[threshold=-0.5,recent=128],"
           "score:cur[threshold=0.001,recent=128]",
           "--quiet"});
  const auto golden = golden_arrays("kvpress-0.5.5.more.pystdlib-lm");
  for (const auto& [press, file] : {std::pair{"knorm", "knorm[threshold=-9,recent=128]"},
                                    {"keydiff", "keydiff[threshold=-0.5,recent=128]"},
                                    {"cur", "score_cur[threshold=0.001,recent=128]"}}) {
    const std::vector<bool> want = unpacked(golden.at(fmt::format("dms-{}.kept.npy", press)));
    REQUIRE(want.size() == kLayers * kHeads * kTokens);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const Npy got =
          npy_file(temp / "r" / fmt::format("layer_0{}/kept/{}-kvpress-prefill-mixed.npy", layer, file));
      REQUIRE(got.shape == std::vector<std::size_t>{kHeads, kTokens});
      for (std::size_t i = 0; i < kHeads * kTokens; ++i) {
        INFO(press << ", layer " << layer << ", KV head " << i / kTokens << ", position " << i % kTokens);
        REQUIRE((got.data[i] != 0) == want[layer * kHeads * kTokens + i]);
      }
    }
  }
}

TEST_CASE("kept sets equal those of either kvpress", "[golden][evict]") {
  const TempDir temp;
  const std::vector<std::string> usual = {"streaming",         "h2o", "tova", "snapkv", "knorm", "keydiff",
                                          "expected_attention"};
  const std::string policies = fmt::format("{},score:lagkv,score:cur,criticalkv", fmt::join(usual, ","));
  const auto name_in_golden = [](const std::string& policy) {
    return policy.starts_with("score:") ? policy.substr(6) : policy;
  };
  std::size_t sets = 0, near = 0;
  for (const auto& [version, semantics] :
       {std::pair{"0.5.4", "kvpress"}, std::pair{"0.5.5", "kvpress-0.5.5"}}) {
    const auto golden = golden_arrays(fmt::format("kvpress-{}.more.pystdlib-lm", version));
    const std::string out = temp / semantics;
    succeed({"evict", sample_dump(), "--out", out, "--precision", "f64", "--semantics", semantics, "--sigma",
             "0.5,0.8,0.9,0.999", "--policy", policies, "--quiet"});
    std::vector<std::string> all = usual;
    all.insert(all.end(), {"score:lagkv", "score:cur", "criticalkv"});
    for (const std::string& policy : all)
      for (const auto& [sigma, count] : {std::pair{"0.5", 448}, {"0.8", 179}, {"0.9", 89}, {"0.999", 0}}) {
        const std::string name = fmt::format("{}-{}", name_in_golden(policy), sigma);
        if (!golden.contains(name + ".kept.npy")) continue;  // among make_kvpress.py's
        const int kept = count == 0 && std::string(version) == "0.5.5" ? 1 : count;
        const std::vector<bool> want = unpacked(golden.at(name + ".kept.npy")),
                                tied = unpacked(golden.at(name + ".near.npy"));
        REQUIRE(want.size() == kLayers * kHeads * kTokens);
        for (std::size_t layer = 0; layer < kLayers; ++layer, ++sets) {
          std::string file = fmt::format("{}-{}-prefill-{}.npy", policy, semantics, kept);
          std::ranges::replace(file, ':', '_');
          const Npy got = npy_file(out + fmt::format("/layer_0{}/kept/", layer) + file);
          REQUIRE(got.shape == std::vector<std::size_t>{kHeads, kTokens});
          CHECK(std::count(got.data.begin(), got.data.end(), '\x01') == kept * static_cast<int>(kHeads));
          for (std::size_t i = 0; i < kHeads * kTokens; ++i) {
            const std::size_t at = layer * kHeads * kTokens + i;
            near += tied[at] ? 1 : 0;
            INFO(version << ", " << name << " layer " << layer << " KV head " << i / kTokens << " position "
                         << i % kTokens);
            if (!tied[at]) REQUIRE((got.data[i] != 0) == want[at]);
          }
        }
      }
  }
  CHECK(sets == (3 * 3 + 10 + 10 * 4) * kLayers);
  CHECK(near < 20000);  // lagkv's ranks, and what has no score of its own where a token is kept
}
