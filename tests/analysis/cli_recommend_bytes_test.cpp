#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

// `kvreplay recommend`: the bytes that count, and the text of a choice.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int kLayers = 2, kHeads = 2, kDim = 32;

struct DumpKind {
  int prompt = 96;
  bool gradients = true;
  Json windows = nullptr;  // one per layer
};

std::string dump_of(const TempDir& temp, int seed, const DumpKind& kind = {}) {
  const std::string dump = temp / fmt::format("dump{}", seed);
  std::vector<std::string> arguments{"synth",      dump,
                                     "--layers",   fmt::format("{}", kLayers),
                                     "--q-heads",  "4",
                                     "--kv-heads", "2",
                                     "--head-dim", fmt::format("{}", kDim),
                                     "--prompt",   fmt::format("{}", kind.prompt),
                                     "--decode",   "6",
                                     "--seed",     fmt::format("{}", seed),
                                     "--quiet"};
  if (kind.gradients) arguments.insert(arguments.end(), {"--gradients", "4"});
  succeed(arguments);
  if (kind.windows.is_null()) return dump;
  const fs::path manifest = fs::path(dump) / "manifest.json";
  Json json = Json::parse(file_text(manifest));
  json["sliding_window"] = kind.windows;
  write_file(manifest, json.dump());
  return dump;
}

fs::path evicted(const TempDir& temp, const std::vector<std::string>& dumps,
                 const std::vector<std::string>& options) {
  static int number = 0;
  const fs::path out = temp / fmt::format("r{}", ++number);
  succeed(joined(joined(joined({"evict"}, dumps), {"--out", out, "--quiet"}), options));
  return out;
}

Json recommended(const fs::path& results, const std::vector<std::string>& more) {
  return Json::parse(succeed(joined({"recommend", results, "--json"}, more)).out);
}
const Json& candidates(const Json& found) { return found.at("recommendations").at(0).at("candidates"); }

/// The uniform candidate of these technique names.
Json everywhere(const Json& found, const std::string& levers) {
  for (const Json& one : candidates(found))
    if (one.at("where") == "everywhere" && one.at("levers") == levers) return one;
  FAIL("no " << levers << " everywhere in " << found.dump(1));
  return nullptr;
}

/// Bytes of a token of all heads in 16 bits.
constexpr double kToken = kLayers * kHeads * 2.0 * kDim * 2;
/// Bytes of `tokens` tokens in KIVI's `bits` bits in groups of 32; the last `residual` tokens are exact.
double kivi_bytes(double tokens, double residual, double bits) {
  return kLayers * kHeads * 2.0 * kDim * ((tokens - residual) * (bits + 1) / 8 + residual * 2);
}

}  // namespace

TEST_CASE("bytes of a context are counted, not scaled", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, 1, {.prompt = 256}), dump_of(temp, 2, {.prompt = 256})};
  const fs::path results = evicted(
      temp, dumps,
      {"--policy", "none,streaming", "--keep", "50%,25%", "--bits", "16,4,2,q4_0", "--residual", "128"});
  // At the prompts' own length the counted bytes equal the measured ones.
  for (const std::string bytes : {"100%", "70%", "60%", "40%"}) {
    const Json measured = recommended(results, {"--bytes", bytes}),
               counted = recommended(results, {"--bytes", bytes, "--context", "256"});
    REQUIRE(candidates(measured).size() == candidates(counted).size());
    for (std::size_t n = 0; n < candidates(measured).size(); ++n) {
      const Json &one = candidates(measured).at(n), &other = candidates(counted).at(n);
      CHECK(one.at("text") == other.at("text"));
      CHECK(one.at("bytes").get<double>() == Approx(other.at("bytes").get<double>()).epsilon(1e-12));
      CHECK(one.at("bytes_of_prompts") == other.at("bytes_of_prompts"));
    }
  }
  for (const double bits : {4.0, 2.0}) {
    constexpr double kContext = 32768;
    const double bytes = kivi_bytes(kContext, 128, bits);
    INFO(bits);
    const auto within = [&](double of) {
      return recommended(results, {"--bytes", fmt::format("{:.6f}KiB", of / 1024), "--context", "32768"});
    };
    const Json one = everywhere(within(bytes + 1), "bits alone");
    CHECK(one.at("text") == fmt::format("all tokens in {:.0f}", bits));
    CHECK(one.at("bytes").get<double>() == Approx(bytes / (kContext * kToken)).epsilon(1e-12));
    // Measured on 256 tokens, of which 128 are exact, the share is larger. The report has both shares.
    CHECK(one.at("bytes_of_prompts").at(0).get<double>() ==
          Approx(kivi_bytes(256, 128, bits) / (256 * kToken)).epsilon(1e-12));
    const std::string text = within(bytes + 1).at("report");
    CHECK(contains(text, fmt::format("of the bytes of 32768 tokens)")));
    CHECK(contains(text, "at 256 tokens"));
    const Json less = within(bytes - 1);
    for (const Json& other : candidates(less))
      CHECK_FALSE((other.at("where") == "everywhere" && other.at("text") == one.at("text")));
  }
  // Shares also refer to the context. All sequences count together.
  CHECK(everywhere(recommended(results, {"--bytes", "32%", "--context", "32768"}), "bits alone").at("text") ==
        "all tokens in 4");
  CHECK(recommended(results, {"--bytes", fmt::format("{}KiB", 3 * 1000 * kToken / 1024 / 2), "--context",
                              "1000", "--batch", "3"})
            .at("recommendations")
            .at(0)
            .at("share")
            .get<double>() == Approx(0.5));
}

TEST_CASE("a layer with a window holds what later rows see of a context", "[recommend]") {
  const TempDir temp;
  const std::string dump = dump_of(temp, 3, {.windows = {17, nullptr}});
  const fs::path results =
      evicted(temp, {dump}, {"--policy", "none,streaming", "--keep", "50%", "--bits", "16,q8_0"});
  const double layer = kToken / kLayers;
  const auto share = [&](double bytes, int context) {
    return recommended(results, {"--bytes", fmt::format("{:.6f}KiB", bytes / 1024), "--context",
                                 fmt::format("{}", context)})
        .at("recommendations")
        .at(0)
        .at("share")
        .get<double>();
  };
  CHECK(share(layer * 500, 4096) == Approx(500.0 / (4096 + 16)));
  CHECK(share(layer * 10, 12) == Approx(10.0 / (12 + 12)));  // shorter than the window
  // Half of the positions that each layer holds.
  const Json half = everywhere(recommended(results, {"--bytes", "50%", "--context", "4096"}), "tokens alone");
  CHECK(half.at("text") == "streaming, kept 50 %");
  CHECK(half.at("bytes").get<double>() == Approx(0.5));
  // Without windows the report does not mention them.
  const std::string plain = dump_of(temp, 4);
  CHECK_FALSE(contains(file_text(evicted(temp, {plain}, {"--policy", "streaming"}) / "summary.json"),
                       "sliding_window"));
}

TEST_CASE("a share of tokens meets the same share of bytes", "[recommend]") {
  const TempDir temp;
  // 25 % of 71 tokens are 17.75: 18 are kept.
  const std::vector<std::string> dumps{dump_of(temp, 5, {.prompt = 71}), dump_of(temp, 6, {.prompt = 71})};
  const fs::path results = evicted(temp, dumps, {"--policy", "streaming", "--keep", "25%"});
  const Json found = recommended(results, {"--bytes", "25%"});
  REQUIRE(candidates(found).size() == 1);
  CHECK(candidates(found).at(0).at("bytes").get<double>() == Approx(18.0 / 71));
  CHECK(contains(found.at("report"), "25.35 %"));
  CHECK_FALSE(contains(found.at("report"), "exceeds"));
  CHECK(candidates(recommended(results, {"--bytes", "24.9%"})).empty());
  // Budgets in tokens are not rounded.
  const fs::path tokens = evicted(temp, dumps, {"--policy", "streaming", "--budget", "18"});
  CHECK(candidates(recommended(tokens, {"--bytes", "25%"})).empty());
  CHECK(candidates(recommended(tokens, {"--bytes", "25.4%"})).size() == 1);
}

TEST_CASE("budgets in tokens stay tokens, in layers with a window, too", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, 30, {.windows = {17, nullptr}}),
                                       dump_of(temp, 31, {.windows = {17, nullptr}})};
  // The windowed layer holds 16 tokens.
  const fs::path results = evicted(temp, dumps, {"--policy", "none,streaming", "--budget", "10,32"});
  const auto recipe_of = [&](const std::string& bytes) {
    const std::string file = temp / "recipe.json";
    const Json found = recommended(results, {"--bytes", bytes, "--out", file});
    return std::pair(found, Json::parse(file_text(file)));
  };
  const auto ran = [&](const Json& recipe) {
    write_file(temp / "run.json", recipe.dump());
    return Evictions(evicted(temp, {dumps[0]}, {"--recipe", "it=" + (temp / "run.json").string()}));
  };
  const Json layer = {{"policy", "streaming"}, {"sigma", {0, 0}}, {"tokens", {32, 32}}};
  const Json recipe = {{"kind", "recipe"}, {"schema", 1}, {"layers", {layer, layer}}};
  const Evictions measured(results / "dump30"), run = ran(recipe);
  for (const std::string place : {",", "0,", "1,"})
    CHECK(run.at(place, "recipe~it,given,prefill,", "", "bytes") ==
          measured.at(place, "streaming,paper,prefill,32", "", "bytes"));
  CHECK(run.at("0,", "recipe~it,given,prefill,", "", "bytes") == 16 * kToken / kLayers);
  CHECK(run.at("1,", "recipe~it,given,prefill,", "", "bytes") == 32 * kToken / kLayers);
  // 16 and 32 of 16 and 96 tokens are 42.9 %.
  const auto [found, written] = recipe_of("43%");
  CHECK(everywhere(found, "tokens alone").at("text") == "streaming, kept 32 tokens");
  CHECK(written.at("layers").at(1).contains("tokens"));
  CHECK(ran(written).at(",", "recipe~it,given,prefill,", "", "bytes") <= 0.43 * 112 * kToken / kLayers);
  const auto [less, between] = recipe_of("30%");  // 10 and 23
  CHECK(everywhere(less, "tokens alone").at("text") ==
        "streaming, kept 17 tokens (interpolated between 10 tokens and 32 tokens)");
  CHECK(contains(less.at("report"), "--keep 17 to be sure"));
  CHECK(everywhere(less, "tokens alone").at("bytes").get<double>() == Approx(33.0 / 112));
  // A longer context holds as many tokens.
  const Json longer =
      everywhere(recommended(results, {"--bytes", "9%", "--context", "1000"}), "tokens alone");
  CHECK(longer.at("text") == "streaming, kept 32 tokens");
  CHECK(longer.at("bytes").get<double>() == Approx(48.0 / 1016));
}

TEST_CASE("where nothing is as small, the smallest is named and no file is written", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, 7), dump_of(temp, 8)};
  const fs::path results = evicted(
      temp, dumps, {"--policy", "none,streaming", "--keep", "25%", "--bits", "16,4", "--residual", "0"});
  const std::string file = temp / "recipe-{bytes}.json";
  write_file(temp / "recipe-1.json", "of before");
  const ProcessResult none = run_kvreplay({"recommend", results, "--bytes", "50%,1%,2%", "--out", file});
  CHECK(none.code == 1);
  CHECK(file_text(temp / "recipe-1.json") == "of before");
  CHECK_FALSE(fs::exists(temp / "recipe-2.json"));
  CHECK(fs::exists(temp / "recipe-50.json"));
  CHECK(contains(none.err,
                 (temp / "recipe-1.json").string() +
                     ": not written, nothing that was measured is as small; the file that is there is "
                     "of an earlier run"));
  CHECK(contains(none.err, (temp / "recipe-2.json").string() +
                               ": not written, nothing that was measured is as small\n"));
  // 24 of 96 tokens in 5 bits.
  CHECK(contains(none.out,
                 "nothing that was measured is as small: the smallest is streaming, kept 25 % in 4, "));
  const auto typed = [](const Json& found) {
    return found.at("recommendations").at(0).at("smallest").at("to_type").get<std::string>();
  };
  const Json small = recommended(results, {"--bytes", "1%"});
  const Json& least = small.at("recommendations").at(0).at("smallest");
  CHECK(least.at("bytes").get<double>() == Approx(least.at("share").get<double>() * 96 * kToken));
  CHECK(contains(none.out, "choose it with --bytes " + typed(small)));
  CHECK(succeed({"recommend", results, "--bytes", typed(small), "--out", temp / "a.json"}).err.empty());
  // A size in bytes, for a context length.
  const std::vector<std::string> context{"--context", "5000", "--batch", "2"};
  const std::string bytes = typed(recommended(results, joined({"--bytes", "1KiB"}, context)));
  CHECK(bytes.ends_with("iB"));
  succeed(joined({"recommend", results, "--bytes", bytes, "--out", temp / "b.json"}, context));
  // Without a file to write, the exit code is 0.
  CHECK(run_kvreplay({"recommend", results, "--bytes", "1%"}).code == 0);
  // An engine may be able to run none of the measured cases.
  const fs::path uniform = evicted(temp, dumps, {"--policy", "none", "--bits", "4"});
  const ProcessResult other =
      run_kvreplay({"recommend", uniform, "--bytes", "90%", "--for", "sglang", "--out", temp / "c.json"});
  CHECK(other.code == 1);
  CHECK(contains(other.out, "nothing of it runs in sglang; measure --policy none --bits sglang"));
}

TEST_CASE("one budget everywhere is taken between two that were measured", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> names{"dump9", "dump10", "dump11"};
  const std::vector<std::string> dumps{dump_of(temp, 9, {.prompt = 200}), dump_of(temp, 10, {.prompt = 200}),
                                       dump_of(temp, 11, {.prompt = 200})};
  const std::vector<std::string> same{"--policy", "none,snapkv[window=8]", "--bits", "16,4", "--residual",
                                      "0"};
  const fs::path results = evicted(temp, dumps, joined({"--keep", "60%,30%"}, same));
  const std::string file = temp / "{way}.json";
  const Json found = recommended(results, {"--bytes", "42%", "--out", file});
  const Json tokens = everywhere(found, "tokens alone");
  CHECK(tokens.at("interpolated") == true);
  CHECK(tokens.at("text") == "snapkv[window=8], kept 42.2 % (interpolated between 30 % and 60 %)");
  CHECK(tokens.at("bytes").get<double>() == Approx(0.42));  // 84 tokens of 200
  // Nats are log-log interpolated over the budget on each prompt, then averaged.
  double mean = 0, less = 0, more = 0;
  for (const std::string& name : names) {
    const Evictions table(results / name);
    const auto loss = [&](const std::string& sigma) {
      return table.at(",", "snapkv[window=8]~16,paper,prefill," + sigma, "future", "loss_step");
    };
    const double part = std::log(0.422 / 0.3) / std::log(0.6 / 0.3);
    mean += std::exp((1 - part) * std::log(loss("0.7")) + part * std::log(loss("0.4"))) / 3;
    less += loss("0.7") / 3;
    more += loss("0.4") / 3;
  }
  CHECK(tokens.at("chosen_on_all").get<double>() == Approx(mean));
  // An interpolated budget that is cheapest is not recommended yet.
  const std::string text = found.at("report");
  if (candidates(found).at(0).at("interpolated")) {
    CHECK(contains(text, "its nats are interpolated: measure --keep "));
    CHECK_FALSE(contains(text, "recommended"));
  }
  // The recipe takes the expected bytes, even if groups of tokens are incomplete and stay unquantized.
  for (const std::string levers : {"tokens", "both"}) {
    const fs::path recipe = temp / (levers + "-everywhere.json");
    if (!fs::exists(recipe)) continue;
    const Json one = everywhere(found, levers == "both" ? "tokens and bits" : "tokens alone");
    const fs::path run = evicted(temp, dumps, {"--recipe", "it=" + recipe.string()});
    double bytes = 0, nats = 0;
    for (const std::string& name : names) {
      const Evictions table(run / name);
      bytes += table.at(",", "recipe~it,given,prefill,", "", "bytes") / (200 * kToken) / 3;
      nats += table.at(",", "recipe~it,given,prefill,", "future", "loss_step") / 3;
    }
    CHECK(bytes == Approx(one.at("bytes").get<double>()));
    CHECK(bytes <= 0.42 + 1e-9);
    if (levers == "tokens") CHECK((more < nats && nats < less));
  }
  // If no larger budget of the runner-up was measured, its bytes are reported.
  const fs::path coarse =
      evicted(temp, dumps,
              {"--policy", "snapkv[window=8]", "--keep", "30%,15%", "--bits", "16,4", "--residual", "0"});
  const Json uneven = recommended(coarse, {"--bytes", "29%"});
  const Json& first = candidates(uneven).at(0);
  if (const Json& second = candidates(uneven).at(1);
      second.at("bytes").get<double>() < 0.98 * first.at("bytes").get<double>())
    CHECK(contains(uneven.at("report"), "not at equal bytes: "));
}

TEST_CASE("a prompt that exceeds the budget is named", "[recommend]") {
  const TempDir temp;
  // A prompt of 96 tokens is entirely in 4 bits; of 120 tokens, the last 24 keys are exact.
  const std::vector<std::string> dumps{dump_of(temp, 12), dump_of(temp, 13, {.prompt = 120})};
  const fs::path results = evicted(temp, dumps, {"--policy", "none", "--bits", "4", "--residual", "0"});
  const Json found = recommended(results, {"--bytes", "35.2%"});
  const Json& shares = candidates(found).at(0).at("bytes_of_prompts");
  CHECK(shares.at(0).get<double>() == Approx(5.0 / 16));
  REQUIRE(shares.at(1).get<double>() == Approx((96 * 5.0 + 24 * 16 + 120 * 5.0) / (2 * 120 * 16)));
  CHECK(contains(found.at("report"), "38.13 % of the bytes of prompt dump13, which exceeds 35.2%"));
  CHECK_FALSE(contains(recommended(results, {"--bytes", "39%"}).at("report"), "exceeds"));
}

TEST_CASE("what is not told apart is not recommended, and the worst prompt is named", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, 14), dump_of(temp, 15), dump_of(temp, 16)};
  const std::vector<std::string> options{"--policy", "none,streaming,h2o", "--keep", "75%,50%,25%", "--bits",
                                         "16,4,2",   "--residual",         "0"};
  const fs::path two = evicted(temp, {dumps[0], dumps[1]}, options), three = evicted(temp, dumps, options);
  const std::string text = succeed({"recommend", two, "--bytes", "30%"}).out;
  CHECK(contains(text, "  lowest mean: "));
  CHECK(contains(text, "2 prompts are too few to tell"));
  CHECK_FALSE(contains(text, "recommended"));
  for (const std::string by : {"mean", "worst"}) {
    const Json found = recommended(three, {"--bytes", "30%", "--by", by});
    double before = 0;
    for (const Json& one : candidates(found)) {
      const std::vector<double> of_prompts = one.at("of_prompts");
      const auto worst = std::max_element(of_prompts.begin(), of_prompts.end());
      CHECK(one.at("worst").at("cost") == *worst);
      CHECK(one.at("worst").at("prompt") == fmt::format("dump{}", 14 + (worst - of_prompts.begin())));
      const double cost = by == "mean" ? one.at("nats").at("mean").get<double>() : *worst;
      CHECK(cost >= before);
      before = cost;
    }
    const Json& told_apart = found.at("recommendations").at(0).at("told_apart");
    const std::string shown = found.at("report");
    CHECK(contains(shown, "  recommended: ") == (told_apart && !candidates(found).at(0).at("interpolated")));
    CHECK(contains(shown, "not told apart") != told_apart);
    CHECK(contains(shown, "worst prompt"));
    CHECK(contains(shown, " " + candidates(found).at(0).at("worst").at("prompt").get<std::string>()));
  }
  // With `--by worst`, each head minimizes its worst prompt. On a single prompt, both objectives agree.
  const auto on_one = [&](const std::string& by) {
    return candidates(recommended(three / "dump14", {"--bytes", "30%", "--by", by}));
  };
  CHECK(on_one("mean") == on_one("worst"));
  CHECK(
      contains(succeed({"recommend", three / "dump14", "--bytes", "30%"}).out, "  lowest on this prompt: "));
  // A report draws two prompts without an interval.
  CHECK_FALSE(contains(report_of(two), "[nan"));
}

TEST_CASE("one format everywhere is not called each layer's own", "[recommend]") {
  const TempDir temp;
  const fs::path results =
      evicted(temp, {dump_of(temp, 17), dump_of(temp, 18)}, {"--policy", "none", "--bits", "q8_0,q4_0"});
  const std::string text = succeed({"recommend", results, "--bytes", "60%", "--for", "llama.cpp"}).out;
  CHECK(contains(text, "bits alone, the same everywhere"));
  CHECK_FALSE(contains(text, "its own"));
}

TEST_CASE("output errors are named by their means, and what they cannot say is said", "[recommend]") {
  const TempDir temp;
  const fs::path results =
      evicted(temp, {dump_of(temp, 19, {.gradients = false}), dump_of(temp, 20, {.gradients = false})},
              {"--policy", "none,streaming", "--keep", "50%", "--bits", "16,4", "--residual", "0"});
  const std::string text = succeed({"recommend", results, "--bytes", "60%"}).out;
  CHECK(contains(text, "output error, mean of heads"));
  CHECK(contains(text, "output error, all heads"));
  CHECK(contains(text, "output error can misorder"));
  const fs::path nats = evicted(temp, {dump_of(temp, 21)}, {"--policy", "none", "--bits", "16,4"});
  CHECK_FALSE(contains(succeed({"recommend", nats, "--bytes", "100%"}).out, "misorder"));
}

TEST_CASE("the files that recommend names are recipes that evict takes", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, 22), dump_of(temp, 23)};
  const fs::path results = evicted(
      temp, dumps, {"--policy", "none,streaming", "--keep", "50%,25%", "--bits", "16,4", "--residual", "0"});
  succeed({"recommend", results, "--bytes", "50%,20%", "--out", temp / "recipe-{bytes}.json", "--quiet"});
  const std::string both =
      fmt::format("{},{}", (temp / "recipe-50.json").string(), (temp / "recipe-20.json").string());
  const fs::path run = evicted(temp, dumps, {"--recipe", both});
  const Evictions table(run / "dump22");
  for (const std::string name : {"recipe_50", "recipe_20"})
    CHECK(table.at(",", fmt::format("recipe~{},given,prefill,", name), "", "bytes") > 0);
  // File names become recipe names; two files with one recipe name are rejected.
  const Json recipe = Json::parse(file_text(temp / "recipe-50.json"));
  write_file(temp / "my best (20 %)é.json", recipe.dump());
  succeed({"evict", dumps[0], "--out", temp / "odd", "--recipe", temp / "my best (20 %)é.json", "--quiet"});
  CHECK(contains(file_text(temp / "odd/evictions.csv"), "recipe~my_best__20_____,"));
  write_file(temp / "recipe_50.json", recipe.dump());
  CHECK(contains(
      refusal({"evict", dumps[0], "--recipe",
               fmt::format("{},{}", (temp / "recipe-50.json").string(), (temp / "recipe_50.json").string())},
              temp / "n"),
      "expected one recipe of a name (name=FILE.json), found 'recipe_50' twice"));
  // A recipe of another model, or with an unknown key, is rejected.
  const auto refused = [&](const std::string& key, const Json& value) {
    Json other = recipe;
    other[key] = value;
    write_file(temp / "bad.json", other.dump());
    return refusal({"evict", dumps[0], "--recipe", temp / "bad.json"}, temp / "n");
  };
  CHECK(contains(refused("model", "llama-9000"), "bad.json: model: expected the dump's, 'synthetic"));
  CHECK(contains(refused("layer", Json::array()), "bad.json: unknown key \"layer\"; did you mean 'layers'?"));
  for (const std::string& any : std::vector<std::string>{"", recipe.at("model")}) {
    Json same = recipe;
    same["model"] = any;
    write_file(temp / "same.json", same.dump());
    succeed(
        {"evict", dumps[0], "--out", temp / "same", "--recipe", temp / "same.json", "--force", "--quiet"});
  }
}
