#include "tests/analysis/golden_arrays.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <numeric>

// `kvreplay conform`: kept sets of kvpress itself are acquitted; what is planted in kept sets and caches is
// named.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLayers = 6, kHeads = 2, kTokens = 896, kAll = 1024, kWidth = 64;

using Mask = std::vector<std::uint8_t>;  // [layers, heads, l]

void write_mask(const fs::path& path, const Mask& mask, std::size_t heads = kHeads) {
  write_file(path, npy("|b1", {kLayers, heads, kTokens}, mask).bytes());
}

/// The kept sets of `evict` on the sample dump.
Mask evicted(const fs::path& folder, const std::string& policy, const std::string& semantics,
             const std::string& keep, std::size_t heads = kHeads, const std::vector<std::string>& more = {}) {
  succeed(joined({"evict", sample_dump(), "--out", folder, "--policy", policy, "--semantics", semantics,
                  "--budget", keep, "--precision", "f64", "--quiet", "--force"},
                 more));
  Mask all;
  for (std::size_t layer = 0; layer < kLayers; ++layer)
    for (const auto& file : fs::directory_iterator(folder / fmt::format("layer_{:02}", layer) / "kept")) {
      const auto part = npy_file(file.path()).as<std::uint8_t>();
      all.insert(all.end(), part.begin(), part.end());
    }
  REQUIRE(all.size() == kLayers * heads * kTokens);
  return all;
}

/// The first case, and the exit code.
struct Judged {
  int code;
  Json all, one;
  std::string reading(std::size_t which) const { return one.at("readings").at(which).at("text"); }
  int left(std::size_t which) const { return one.at("readings").at(which).at("tokens_left"); }
};
Judged judge(const std::vector<std::string>& arguments, const std::string& dump = sample_dump()) {
  const ProcessResult run = run_kvreplay(joined({"conform", dump, "--json"}, arguments));
  INFO(run.err << run.out);
  REQUIRE(run.code <= 1);
  const Json all = Json::parse(run.out);
  CHECK(all.at("ok") == (run.code == 0));
  return {run.code, all, all.at("cases").at(0)};
}
Judged judge_mask(const Mask& mask, const std::vector<std::string>& arguments, std::size_t heads = kHeads) {
  const TempDir temp;
  write_mask(temp / "kept.npy", mask, heads);
  return judge(joined({"--kept", temp / "kept.npy"}, arguments));
}

/// The sample's keys or values of all positions, [layers][heads, T, d].
std::vector<std::vector<float>> sample_numbers(const std::string& name) {
  std::vector<std::vector<float>> all;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const Npy file = npy_file(fs::path(sample_dump()) / fmt::format("layer_{:02}", layer) / (name + ".npy"));
    std::vector<float> numbers;
    for (const std::uint16_t half : file.as<std::uint16_t>()) {
      const int exponent = half >> 10 & 31;
      const double size =
          exponent == 0 ? std::ldexp(half & 1023, -24) : std::ldexp(1024 + (half & 1023), exponent - 25);
      numbers.push_back(static_cast<float>(half >> 15 != 0 ? -size : size));
    }
    all.push_back(std::move(numbers));
  }
  return all;
}

/// A cache of the kept rows in the order of the prompt, each as `make` makes it of (numbers [T, d], place,
/// position).
using Make = std::function<void(float* row, std::size_t layer, std::size_t head, std::size_t place,
                                std::size_t position)>;
void write_cache(const fs::path& folder, const Mask& mask, const Make& keys, const Make& values) {
  for (const auto& [name, make] : {std::pair("k", &keys), std::pair("v", &values)}) {
    const auto all = sample_numbers(name);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> held;
      for (std::size_t head = 0; head < kHeads; ++head) {
        std::size_t place = 0;
        for (std::size_t p = 0; p < kTokens; ++p) {
          if (mask[(layer * kHeads + head) * kTokens + p] == 0) continue;
          const float* row = all[layer].data() + (head * kAll + p) * kWidth;
          held.insert(held.end(), row, row + kWidth);
          if (*make) (*make)(held.data() + held.size() - kWidth, layer, head, place, p);
          ++place;
        }
      }
      fs::create_directories(folder / fmt::format("layer_{:02}", layer));
      write_file(folder / fmt::format("layer_{:02}", layer) / (std::string(name) + ".npy"),
                 npy("<f4", {kHeads, held.size() / kHeads / kWidth, kWidth}, held).bytes());
    }
  }
}

/// A key turned on by so many positions, halves of 64 channels as the sample's manifest says (theta 10000).
void turn(float* row, double by) {
  for (std::size_t j = 0; j < kWidth / 2; ++j) {
    const double angle = by * std::pow(10000.0, -2.0 * static_cast<double>(j) / kWidth), a = row[j],
                 b = row[j + kWidth / 2];
    row[j] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    row[j + kWidth / 2] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
  }
}

}  // namespace

TEST_CASE("what kvpress itself keeps conforms to its semantics", "[cli][conform][golden]") {
  const std::map<std::string, Npy> golden = golden_arrays("kvpress-0.5.4.pystdlib-lm");
  for (const char* policy : {"streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention",
                             "snapkv~ada", "snapkv~pyramid"})
    for (const char* sigma : {policy[0] == 's' ? "0.8" : "0.5"}) {
      std::string press = policy;
      if (press == "snapkv~ada") press = "ada_snapkv";
      if (press == "snapkv~pyramid") press = "pyramid_snapkv";
      const std::vector<bool> bits = unpacked(golden.at(fmt::format("{}-{}.kept.npy", press, sigma)));
      INFO(policy << " " << sigma);
      const Judged found = judge_mask(Mask(bits.begin(), bits.end()),
                                      {"--as", policy, "--semantics", "kvpress", "--sigma", sigma});
      CHECK(found.code == 0);
      CHECK(found.one.at("tokens_apart") == 0);
      if (policy != std::string("knorm")) CHECK(found.one.at("verdict") == "conforms");
    }
}

TEST_CASE("the changes from kvpress 0.5.4 to 0.5.5 are named", "[cli][conform][golden]") {
  const std::map<std::string, Npy> before = golden_arrays("kvpress-0.5.4.more.pystdlib-lm"),
                                   after = golden_arrays("kvpress-0.5.5.more.pystdlib-lm");
  for (const char* press : {"snapkv", "criticalkv"}) {
    const std::string name = fmt::format("{}-0.999.kept.npy", press);
    INFO(name);
    for (const auto& [arrays, as, other] :
         {std::tuple(&after, "kvpress", "kvpress-0.5.5"), {&before, "kvpress-0.5.5", "kvpress"}}) {
      const std::vector<bool> bits = unpacked(arrays->at(name));
      const Judged found =
          judge_mask(Mask(bits.begin(), bits.end()),
                     {"--as", press, "--semantics", as, "--sigma", "0.999", "--layers", "0-1"});
      CHECK(found.code == 1);
      CHECK(found.one.at("verdict") == "the budget is not held");
      const char* what =
          press == std::string("criticalkv") ? " with the settings of " : " with the budget rounded as in ";
      CHECK(contains(found.reading(0), press + std::string(what)));
      CHECK(contains(found.reading(0), other));
      // Only protected tokens differ, and their scores are equal.
      CHECK(found.one.at("readings").at(0).at("tokens_apart") == 0);
      CHECK(judge_mask(Mask(bits.begin(), bits.end()),
                       {"--as", press, "--semantics", other, "--sigma", "0.999"})
                .code == 0);
    }
  }
}

TEST_CASE("the first tokens that kvpress 0.5.5 protects in KVzip are named", "[cli][conform]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  add_second_reading(temp / "dump", 40);
  Json kept = Json::array();
  succeed({"evict", temp / "dump", "--out", temp / "r", "--policy", "kvzip", "--semantics", "kvpress-0.5.5",
           "--budget", "12", "--quiet"});
  for (const char* layer : {"layer_00", "layer_01"}) {
    const auto mask =
        npy_file(temp / "r" / layer / "kept/kvzip-kvpress-0.5.5-prefill-12.npy").as<std::uint8_t>();
    kept.push_back({Json::array(), Json::array()});
    for (std::size_t i = 0; i < mask.size(); ++i)
      if (mask[i] != 0) kept.back()[i / 61].push_back(i % 61);
  }
  write_file(temp / "kept.json", kept.dump());
  const std::vector<std::string> as = {"--kept", temp / "kept.json", "--as", "kvzip", "--budget",
                                       "12",     "--semantics"};
  CHECK(judge(joined(as, {"kvpress-0.5.5"}), temp / "dump").code == 0);
  const Judged before = judge(joined(as, {"kvpress"}), temp / "dump");
  CHECK(before.code == 1);
  CHECK(before.reading(0) == "kvzip with the settings of kvpress-0.5.5");
  CHECK(before.left(0) == 0);
}

TEST_CASE("a policy read otherwise is named, with nothing left", "[cli][conform]") {
  struct Case {
    const char *kept, *as, *named;
  };
  const TempDir temp;
  for (const Case& one : {
           Case{"snapkv[pool=max:5]", "snapkv[pool=avg:5]", "snapkv[pool=avg:5] with pool = max:5"},
           Case{"snapkv[window=16]", "snapkv", "snapkv with window = 16"},
           Case{"snapkv[sinks=4]", "snapkv", "snapkv with the first 4 protected"},
           Case{"streaming[sinks=0]", "streaming", "streaming with the first tokens not protected"},
           Case{"h2o[recent=0]", "h2o", "h2o with the last tokens not protected"},
           Case{"snapkv[pool=none]", "snapkv", "snapkv with no pooling"},
           Case{"snapkv[page=16]", "snapkv", "snapkv with whole pages of 16"},
           Case{"tova", "snapkv", "tova"},
           Case{"tova", "score:lagkv", "tova"},
           Case{"snapkv", "snapkv+joint", "snapkv"},
           Case{"snapkv[window=16,pool=avg:3]", "snapkv", "snapkv with window = 16 and pool = avg:3"},
       }) {
    INFO(one.kept << " as " << one.as);
    const Judged found = judge_mask(evicted(temp / "r", one.kept, "paper", "176"),
                                    {"--as", one.as, "--budget", "176", "--layers", "0-1"});
    CHECK(found.code == 1);
    CHECK(found.reading(0) == one.named);
    CHECK(found.left(0) == 0);
  }
  const Mask kvpress = evicted(temp / "r", "snapkv", "kvpress", "179");
  CHECK(judge_mask(kvpress, {"--as", "snapkv", "--budget", "179"}).reading(0) ==
        "snapkv with the settings of kvpress, kvpress-0.5.5");
  CHECK(judge_mask(kvpress, {"--as", "snapkv", "--semantics", "kvpress", "--budget", "179"}).code == 0);
}

TEST_CASE("a named reading keeps exactly the same, anything else is the nearest", "[cli][conform]") {
  const TempDir temp;
  const auto streaming = [](std::size_t sinks, std::size_t newest) {
    Mask mask(kLayers * kHeads * kTokens, 0);
    for (std::size_t head = 0; head < kLayers * kHeads; ++head) {
      const auto row = mask.begin() + static_cast<std::ptrdiff_t>(head * kTokens);
      std::fill_n(row, sinks, std::uint8_t{1});
      std::fill_n(row + static_cast<std::ptrdiff_t>(kTokens - newest - 179 + sinks), 179 - sinks,
                  std::uint8_t{1});
    }
    return mask;
  };
  const auto reading = [&](const Mask& mask, const char* as, const char* layers = "0-5") {
    const Judged found = judge_mask(mask, {"--as", as, "--budget", "179", "--layers", layers});
    INFO(found.one.dump());
    CHECK(found.code == 1);
    CHECK(found.left(0) == 0);
    CHECK(contains(found.all.at("report").get<std::string>(), "what it keeps is " + found.reading(0)));
    return found.reading(0);
  };
  CHECK(reading(streaming(3, 0), "streaming") == "streaming with the first 3 protected");
  CHECK(reading(streaming(5, 0), "streaming") == "streaming with the first 5 protected");
  CHECK(reading(streaming(23, 0), "streaming") == "streaming with the first 23 protected");
  CHECK(reading(streaming(4, 1), "streaming") == "streaming with the newest token never kept");
  CHECK(reading(streaming(4, 2), "streaming") == "streaming with the newest 2 tokens never kept");

  const Mask mask = evicted(temp / "r", "tova", "paper", "179");
  const auto from = [&](std::size_t layers_on, std::size_t heads_on) {
    Mask moved;
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      for (std::size_t head = 0; head < kHeads; ++head) {
        const auto row = mask.begin() +
                         static_cast<std::ptrdiff_t>(
                             ((layer + layers_on) % kLayers * kHeads + (head + heads_on) % kHeads) * kTokens);
        moved.insert(moved.end(), row, row + kTokens);
      }
    return moved;
  };
  CHECK(reading(from(0, 1), "tova") == "tova with the tokens of the next KV head");
  CHECK(reading(from(1, 0), "tova") == "tova with the tokens of the next layer");
  CHECK(reading(from(5, 0), "tova") == "tova with the tokens of the layer before");
  CHECK(reading(evicted(temp / "r", "snapkv[window=24]", "paper", "179"), "snapkv") ==
        "snapkv with window = 24");
  CHECK(reading(evicted(temp / "r", "h2o[recent=45]", "paper", "179"), "h2o", "0-1") ==
        "h2o with the last 45 protected");

  // Dumps with equal numbers, but another scale in the manifest.
  fs::copy(sample_dump(), temp / "dump", fs::copy_options::recursive);
  Json manifest = Json::parse(file_text(temp / "dump/manifest.json"));
  for (const auto& [scale, named] : {std::pair(1.0, "tova with logits that are not scaled"),
                                     {1.0 / 64, "tova with logits scaled twice"}}) {
    manifest["scale"] = scale;
    write_file(temp / "dump/manifest.json", manifest.dump());
    succeed({"evict", temp / "dump", "--out", temp / "s", "--policy", "tova", "--budget", "179",
             "--precision", "f64", "--quiet", "--force"});
    Mask scaled;
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const auto part =
          npy_file(temp / "s" / fmt::format("layer_{:02}", layer) / "kept/tova-paper-prefill-179.npy")
              .as<std::uint8_t>();
      scaled.insert(scaled.end(), part.begin(), part.end());
    }
    CHECK(reading(scaled, "tova") == named);
  }

  // One token replaced by another: no reading explains that.
  Mask other = streaming(5, 0);
  other[kTokens + 100] = 1, other[kTokens + 895] = 0;
  const Judged near = judge_mask(other, {"--as", "streaming", "--budget", "179"});
  CHECK(near.reading(0) == "streaming with the first 5 protected");
  CHECK(near.left(0) == 2);
  CHECK(contains(near.all.at("report").get<std::string>(),
                 "nearest: streaming with the first 5 protected (2 of 26 tokens differ)"));

  // One head alone keeps what another reading does.
  Mask one_head = streaming(4, 0);
  one_head[kTokens + 4] = 1, one_head[2 * kTokens - 175] = 0;
  CHECK(contains(
      judge_mask(one_head, {"--as", "streaming", "--budget", "179"}).all.at("report").get<std::string>(),
      "  the heads that depart keep streaming with the first 5 protected (the others do not)\n"));

  // If a head keeps too few tokens, no variant that is farther away than the policy is reported as near.
  Mask fewer = streaming(4, 0);
  fewer[kTokens + 800] = fewer[kTokens + 810] = 0;
  const Judged few = judge_mask(fewer, {"--as", "streaming", "--budget", "179"});
  for (const Json& one : few.one.value("readings", Json::array()))
    CHECK(one.at("tokens_left").get<int>() < one.at("of").get<int>());
  CHECK(few.one.at("tokens_apart") == 2);
}

TEST_CASE("of more pinned tokens than stay the first go first, then the newest", "[cli][conform]") {
  const auto kept = [](std::size_t begin, std::size_t other) {
    Mask mask(kLayers * kHeads * kTokens, 0);
    for (std::size_t head = 0; head < kLayers * kHeads; ++head)
      std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(head * kTokens + begin), 20, std::uint8_t{1});
    if (other > 0) mask[begin] = 0, mask[other] = 1;
    return mask;
  };
  for (const char* numbers : {"float16", "float32"}) {
    INFO(numbers);
    const std::vector<std::string> as = {"--as", "snapkv", "--budget", "20", "--numbers", numbers};
    CHECK(judge_mask(kept(kTokens - 20, 0), as).one.at("verdict") == "conforms");
    CHECK(judge_mask(kept(kTokens - 32, 0), as).one.at("tokens_apart") == 24 * kLayers * kHeads);
    CHECK(judge_mask(kept(kTokens - 20, kTokens - 25), as).one.at("tokens_apart") == 2);
    // kvpress gives all protected tokens one score, so any of them may stay.
    CHECK(judge_mask(kept(kTokens - 32, 0),
                     [&] {
                       std::vector<std::string> theirs = as;
                       theirs.insert(theirs.end(), {"--semantics", "kvpress"});
                       return theirs;
                     }())
              .one.at("verdict") == "conforms but for ties");
  }
}

TEST_CASE("positions behind a sliding window are not compared", "[cli][conform]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  Json manifest = Json::parse(file_text(temp / "dump/manifest.json"));
  manifest["sliding_window"] = {20, nullptr};
  write_file(temp / "dump/manifest.json", manifest.dump());
  constexpr std::size_t l = 61, first = l - 19;
  const auto judged = [&](const Mask& mask, const std::vector<std::string>& as) {
    write_file(temp / "kept.npy", npy("|b1", {2, 2, l}, mask).bytes());
    return judge(joined({"--kept", temp / "kept.npy"}, as), temp / "dump");
  };
  const Mask all(2 * 2 * l, 1);
  Mask held = all, less;
  for (std::size_t head = 0; head < 2; ++head)
    std::fill_n(held.begin() + static_cast<std::ptrdiff_t>(head * l), first, std::uint8_t{0});
  less = held;
  less[first] = 0;
  for (const Mask& mask : {all, held}) {
    const Judged found = judged(mask, {"--as", "none"});
    CHECK(found.one.at("verdict") == "conforms");
    CHECK(found.all.at("not_compared") == Json::parse(R"([{"positions": 42, "layers": [0]}])"));
    CHECK(contains(found.all.at("report").get<std::string>(),
                   "not compared: positions 0 to 41 of layer 0, which a sliding window hides"));
  }
  const Judged dropped = judged(less, {"--as", "none"});
  CHECK(dropped.code == 1);
  CHECK(dropped.one.at("tokens_apart") == 1);
  CHECK(dropped.one.at("first").at("position") == first);

  // Streaming keeps the first positions where the layer holds them, and the newest.
  Mask streaming(2 * 2 * l, 0);
  for (std::size_t head = 0; head < 4; ++head) {
    const auto row = streaming.begin() + static_cast<std::ptrdiff_t>(head * l);
    std::fill_n(row + static_cast<std::ptrdiff_t>(head < 2 ? l - 12 : 0), 4, std::uint8_t{1});
    std::fill_n(row + static_cast<std::ptrdiff_t>(l - 8), 8, std::uint8_t{1});
  }
  CHECK(judged(streaming, {"--as", "streaming", "--budget", "12"}).one.at("verdict") == "conforms");
  streaming[3] = 1;  // a hidden position
  CHECK(judged(streaming, {"--as", "streaming", "--budget", "12"}).one.at("verdict") == "conforms");
  CHECK(judged(all, {"--as", "streaming", "--budget", "12"}).one.at("verdict") == "nothing was evicted");
  CHECK(judged(held, {"--as", "streaming", "--budget", "12"}).one.at("verdict") == "nothing was evicted");
}

TEST_CASE("what no reading explains is not explained", "[cli][conform]") {
  Mask any(kLayers * kHeads * kTokens, 0);
  for (std::size_t head = 0; head < kLayers * kHeads; ++head)
    for (std::size_t n = 0, at = 7 * head; n < 179; at = (at * 5 + 3) % 1024)  // every number below 1024 once
      if (at < kTokens) any[head * kTokens + at] = 1, ++n;
  for (const char* policy : {"h2o", "snapkv~ada"}) {
    const Judged found = judge_mask(any, {"--as", policy, "--budget", "179", "--layers", "2"});
    INFO(policy << found.one.dump());
    CHECK(found.one.at("verdict") == "differs");
    for (std::size_t which = 0; found.one.contains("readings") && which < found.one.at("readings").size();
         ++which)
      CHECK(2 * found.left(which) > found.one.at("readings").at(which).at("of").get<int>());
  }
}

TEST_CASE("budgets that are not held are told apart", "[cli][conform]") {
  const TempDir temp;
  const auto reading = [&](const char* kept) {
    const Judged found =
        judge_mask(evicted(temp / "r", "snapkv", "paper", kept), {"--as", "snapkv", "--budget", "179"});
    CHECK(found.one.at("verdict") == "the budget is not held");
    CHECK(found.one.at("budgets_apart") == kLayers * kHeads);
    CHECK(found.left(0) == 0);
    return found.reading(0);
  };
  CHECK(reading("211") == "snapkv with the protected tokens kept beside the budget");
  CHECK(reading("147") == "snapkv with the protected tokens counted twice");
  CHECK(reading("180") == "snapkv with a token too many");
  CHECK(reading("120") == "snapkv with a budget of 120 tokens");

  const Judged whole = judge_mask(Mask(kLayers * kHeads * kTokens, 1), {"--as", "snapkv", "--budget", "179"});
  CHECK(whole.one.at("verdict") == "nothing was evicted");
  CHECK(whole.code == 1);
  CHECK(judge_mask(Mask(kLayers * kHeads * kTokens, 1), {"--as", "none"}).code == 0);

  write_mask(temp / "a.npy", evicted(temp / "r", "snapkv", "paper", "179"));
  const Judged same = judge(
      {"--kept", fmt::format("{0},{0}", (temp / "a.npy").string()), "--as", "snapkv", "--budget", "90,179"});
  CHECK(same.code == 1);
  CHECK(same.all.at("cases").at(1).at("verdict") == "another budget gave the same");
}

TEST_CASE("a division of the budget is part of what is asked for", "[cli][conform]") {
  const TempDir temp;
  const std::map<std::string, Npy> golden = golden_arrays("kvpress-0.5.4.pystdlib-lm");
  const std::vector<bool> bits = unpacked(golden.at("ada_snapkv-0.8.kept.npy"));
  const Mask ada(bits.begin(), bits.end());
  const Judged found = judge_mask(ada, {"--as", "snapkv", "--semantics", "kvpress", "--sigma", "0.8"});
  CHECK(found.one.at("verdict") == "the budget is not held");
  CHECK(found.reading(0) == "snapkv with the budget divided as AdaKV does");
  CHECK(found.left(0) == 0);
  CHECK(contains(found.one.at("text").get<std::string>(), "every layer's sum is held"));

  // The same, said by numbers.
  std::vector<std::int64_t> budgets;
  for (std::size_t head = 0; head < kLayers * kHeads; ++head)
    budgets.push_back(std::accumulate(ada.begin() + static_cast<std::ptrdiff_t>(head * kTokens),
                                      ada.begin() + static_cast<std::ptrdiff_t>((head + 1) * kTokens),
                                      std::int64_t{0}));
  write_file(temp / "budgets.npy", npy("<i8", {kLayers, kHeads}, budgets).bytes());
  CHECK(judge_mask(ada, {"--as", "snapkv", "--semantics", "kvpress", "--sigma", "0.8", "--budgets",
                         temp / "budgets.npy"})
            .code == 0);
}

TEST_CASE("kept sets come as masks, positions in any order, ragged lists and pages", "[cli][conform]") {
  const TempDir temp;
  const Mask mask = evicted(temp / "r", "snapkv[page=16]", "paper", "176");
  const std::vector<std::string> as = {"--as", "snapkv[page=16]", "--budget", "176"};
  const auto with = [&](const fs::path& file) { return judge(joined({"--kept", file.string()}, as)).code; };
  write_file(temp / "ints.npy", npy("|u1", {1, kLayers, kHeads, kTokens}, mask).bytes());
  CHECK(with(temp / "ints.npy") == 0);

  std::vector<std::int64_t> positions;
  Json lists = Json::array(), pages = Json::array();
  for (std::size_t head = 0; head < kLayers * kHeads; ++head) {
    std::vector<std::int64_t> mine, of_pages;
    for (std::size_t p = kTokens; p-- > 0;)
      if (mask[head * kTokens + p] != 0) {
        mine.push_back(static_cast<std::int64_t>(p));
        if (p % 16 == 0) of_pages.push_back(static_cast<std::int64_t>(p / 16));
      }
    if (head % kHeads == 0) lists.push_back(Json::array()), pages.push_back(Json::array());
    lists.back().push_back(mine), pages.back().push_back(of_pages);
    mine.resize(200, -1);
    positions.insert(positions.end(), mine.begin(), mine.end());
  }
  write_file(temp / "positions.npy", npy("<i8", {kLayers, kHeads, 200}, positions).bytes());
  CHECK(with(temp / "positions.npy") == 0);
  write_file(temp / "lists.json", lists.dump());
  CHECK(with(temp / "lists.json") == 0);
  write_file(temp / "pages.json", Json({{"page", 16}, {"pages", pages}}).dump());
  CHECK(with(temp / "pages.json") == 0);

  // One table for all heads of a layer, as engines have it.
  const Mask shared = evicted(temp / "r", "snapkv[page=16,page_heads=layer]", "paper", "176");
  Json tables = Json::array();
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    tables.push_back(Json::array());
    for (std::size_t page = 0; page < kTokens / 16; ++page)
      if (shared[layer * kHeads * kTokens + page * 16] != 0) tables.back().push_back(page);
  }
  write_file(temp / "tables.json", Json({{"page", 16}, {"pages", tables}}).dump());
  CHECK(judge({"--kept", temp / "tables.json", "--as", "snapkv[page=16,page_heads=layer]", "--budget", "176"})
            .code == 0);

  // Every query head with a cache of its own.
  const Mask of_queries = evicted(temp / "r", "snapkv", "official", "179", 4, {"--per-query-head"});
  CHECK(judge_mask(of_queries, {"--as", "snapkv", "--semantics", "official", "--budget", "179"}, 4).code ==
        0);
}

TEST_CASE("what a kept set costs stands beside the policy's and the oracle's", "[cli][conform]") {
  const TempDir temp;
  const Mask mask = evicted(temp / "r", "tova", "paper", "179");
  const Judged found = judge_mask(mask, {"--as", "snapkv", "--budget", "179"});
  succeed({"evict", sample_dump(), "--out", temp / "e", "--policy", "tova,snapkv,oracle", "--budget", "179",
           "--quiet"});
  const Evictions evictions(temp / "e");
  for (const auto& [name, policy] :
       {std::pair("as found", "tova"), {"snapkv", "snapkv"}, {"oracle", "oracle"}})
    CHECK(found.one.at("costs").at(name).at("output_error").get<double>() ==
          Approx(evictions.at(",", fmt::format("{},paper,prefill,179", policy), "future", "output_error"))
              .epsilon(1e-5));
  CHECK(found.one.at("first").at("layer") == 0);
}

TEST_CASE("scores that were ranked by are told from what was kept by them", "[cli][conform]") {
  const TempDir temp;
  const Mask mask = evicted(temp / "r", "knorm", "paper", "179");
  const auto keys = sample_numbers("k");
  std::vector<double> scores(kLayers * kHeads * kTokens);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::size_t layer = i / (kHeads * kTokens), head = i / kTokens % kHeads, p = i % kTokens;
    const float* row = keys[layer].data() + (head * kAll + p) * kWidth;
    scores[i] = -std::sqrt(std::inner_product(row, row + kWidth, row, 0.0));
  }
  write_file(temp / "scores.npy", npy("<f8", {kLayers, kHeads, kTokens}, scores).bytes());
  const std::vector<std::string> as = {"--as", "knorm", "--budget", "179", "--scores", temp / "scores.npy"};
  const Judged good = judge_mask(mask, as);
  CHECK(good.code == 0);
  CHECK(good.one.at("scores").at("lowest_spearman").get<double>() > 0.9999);
  CHECK(good.one.at("scores").at("heads_off") == 0);
  Mask other = mask;
  std::rotate(other.begin(), other.begin() + 1, other.begin() + kTokens);  // one head a place too early
  const Judged bad = judge_mask(other, as);
  CHECK(bad.code == 1);
  CHECK(bad.one.at("scores").at("heads_off") == 1);
  CHECK(bad.reading(0) == "knorm with every position one too early");
}

TEST_CASE("what a cache holds is told from what the model made", "[cli][conform]") {
  const TempDir temp;
  const Mask mask = evicted(temp / "r", "snapkv", "paper", "179");
  const auto held = [&](const Make& keys, const Make& values, const std::vector<std::string>& more = {}) {
    fs::remove_all(temp / "cache");
    write_cache(temp / "cache", mask, keys, values);
    return judge(joined(
        {"--cache", temp / "cache", "--as", "snapkv", "--budget", "179", "--numbers", "float32"}, more));
  };
  const auto said = [](const Judged& found, const char* of) {
    for (const Json& one : found.one.at("held"))
      if (one.at("of") == of && one.at("heads") == kLayers * kHeads) return one.at("text").get<std::string>();
    return found.one.at("held").dump();
  };
  const Make as_it_is;
  CHECK(held(as_it_is, as_it_is).code == 0);

  const Judged anew = held([](float* row, auto, auto, auto place,
                              auto p) { turn(row, static_cast<double>(place) - static_cast<double>(p)); },
                           as_it_is);
  CHECK(anew.code == 1);
  CHECK(anew.one.at("verdict") == "the cache holds other numbers");
  CHECK(said(anew, "keys") == "turned to positions 0 to 178, one behind the other");
  CHECK(said(anew, "values") == "as the model made them");
  CHECK(anew.one.at("costs").at("cache as held").at("output_error") >
        anew.one.at("costs").at("snapkv").at("output_error"));

  CHECK(said(held([](float* row, auto...) { turn(row, 12); }, as_it_is), "keys") ==
        "turned on by 12 positions");
  CHECK(said(held([](float* row, auto, auto, auto, auto p) { turn(row, -static_cast<double>(p)); }, as_it_is),
             "keys") == "before their rotation");
  const Make halved = [](float* row, auto...) {
    std::transform(row, row + kWidth, row, [](float x) { return x / 2; });
  };
  CHECK(said(held(halved, as_it_is), "keys") == "multiplied by 0.5");
  const auto values = sample_numbers("v");
  const Make of_other = [&](float* row, auto layer, auto head, auto, auto p) {
    std::copy_n(values[layer].data() + ((1 - head) * kAll + p) * kWidth, kWidth, row);
  };
  const Judged mixed = held(as_it_is, of_other, {"--kept", [&] {
                                                   write_mask(temp / "kept.npy", mask);
                                                   return (temp / "kept.npy").string();
                                                 }()});
  CHECK(contains(mixed.one.at("text").get<std::string>(), "values those of KV head"));
  const Make two_bits = [](float* row, auto...) {
    for (std::size_t g = 0; g < kWidth; g += 32) {
      const auto [low, high] = std::minmax_element(row + g, row + g + 32);
      const double m = *low, step = (*high - m) / 3;
      for (std::size_t c = g; c < g + 32; ++c)
        row[c] = static_cast<float>(m + step * std::floor((row[c] - m) / step + 0.5));
    }
  };
  const Judged coarse = held(as_it_is, two_bits);
  CHECK(contains(said(coarse, "values"), "in 2 bits per token, groups of 32"));
  CHECK(held(as_it_is, two_bits, {"--bits", "k16v2", "--residual", "0"}).code == 0);
  CHECK(held(as_it_is, two_bits, {"--bits", "k16v4", "--residual", "0"}).code == 1);
}

TEST_CASE("what cannot be judged is one line", "[cli][conform]") {
  const TempDir temp;
  const auto refused = [&](const std::string& file, const std::vector<std::string>& more = {}) {
    return complaint(
        joined({"conform", sample_dump(), "--kept", temp / file, "--as", "snapkv", "--budget", "2"}, more));
  };
  const auto positions = [&](const std::string& file, std::int64_t second) {
    std::vector<std::int64_t> all(kLayers * kHeads * 2);
    for (std::size_t head = 0; head < kLayers * kHeads; ++head) all[2 * head] = 5, all[2 * head + 1] = 7;
    all[2 * 3 + 1] = second;
    write_file(temp / file, npy("<i8", {kLayers, kHeads, 2}, all).bytes());
  };
  positions("beyond.npy", 896);
  CHECK(contains(refused("beyond.npy"),
                 "beyond.npy: layer 1, head 1: expected positions 0 to 895 of the prompt, found 896"));
  positions("negative.npy", -2);
  CHECK(contains(refused("negative.npy"), "found -2"));
  positions("twice.npy", 5);
  CHECK(contains(refused("twice.npy"), "layer 1, head 1: expected every position once, found 5 twice"));
  write_file(temp / "layers.npy", npy("|b1", {5, kHeads, kTokens}, Mask(5 * kHeads * kTokens, 1)).bytes());
  CHECK(contains(refused("layers.npy"), "expected 6 layers, found 5 layers"));
  write_file(temp / "heads.npy", npy("|b1", {kLayers, 3, kTokens}, Mask(kLayers * 3 * kTokens, 1)).bytes());
  CHECK(contains(refused("heads.npy"),
                 "layer 0: expected 2 KV heads, or 4 query heads in every layer, found 3 heads"));
  write_file(temp / "text.json", "{\"pages\": \"all\"}");
  CHECK(contains(refused("text.json"), "expected lists of positions"));
  CHECK(contains(refused("none.npy"), "none.npy"));
  CHECK(contains(refused("kept.bin"), "a name that ends in .npy, .npz or .json"));

  positions("good.npy", 7);
  CHECK(contains(
      complaint({"conform", sample_dump(), "--kept", temp / "good.npy", "--as", "snapkv", "--budget", "2,3"}),
      "expected a file for each budget, found 1 file and 2 budgets"));
  CHECK(contains(complaint({"conform", sample_dump(), "--as", "snapkv", "--budget", "2"}),
                 "--kept or --cache: expected what was kept"));
  CHECK(contains(
      complaint({"conform", sample_dump(), "--kept", temp / "good.npy", "--as", "snapvk", "--budget", "2"}),
      "--as: unknown policy 'snapvk'; did you mean 'snapkv'?"));
  CHECK(contains(complaint({"conform", sample_dump(), "--kept", temp / "good.npy", "--as", "greedy_exact",
                            "--budget", "2"}),
                 "--as: expected a policy that ranks and evicts, found 'greedy_exact', which searches"));
  CHECK(contains(complaint({"conform", sample_dump(), "--kept", temp / "good.npy", "--as", "snapkv~lu",
                            "--budget", "2"}),
                 "expected uniform, ada or pyramid behind '~'"));
  std::vector<double> scores(kLayers * kHeads * kTokens, 1);
  scores[kTokens + 3] = std::nan("");
  write_file(temp / "scores.npy", npy("<f8", {kLayers, kHeads, kTokens}, scores).bytes());
  CHECK(
      contains(refused("good.npy", {"--scores", temp / "scores.npy"}), "NaN at layer 0, head 1, position 3"));

  const Make other = [](float* row, auto layer, auto head, auto, auto p) {
    for (std::size_t c = 0; c < kWidth; ++c)
      row[c] = static_cast<float>(std::sin(static_cast<double>(3 * c + 7 * p + 11 * head + 13 * layer)));
  };
  write_cache(temp / "other", Mask(kLayers * kHeads * kTokens, 1), other, other);
  CHECK(contains(
      complaint({"conform", sample_dump(), "--cache", temp / "other", "--as", "none"}),
      "other: expected keys or values of the dump's prompt in some head, found those of another prompt"));
  write_cache(temp / "cache", Mask(kLayers * kHeads * kTokens, 1), {}, {});
  write_file(temp / "cache/layer_02/v.npy",
             npy("<f4", {kHeads, 1025, kWidth}, std::vector<float>(kHeads * 1025 * kWidth)).bytes());
  CHECK(contains(complaint({"conform", sample_dump(), "--cache", temp / "cache", "--as", "none"}),
                 "layer_02/v.npy: expected shape [2, 896, 64]"));
}
