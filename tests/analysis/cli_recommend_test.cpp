#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

// `kvreplay recommend`, and `evict --recipe`, which runs what it chose.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kFigures{"output_error", "loss_row", "loss_step", "bytes"};

std::string dump_of(const TempDir& temp, const std::string& seed, const std::string& layers = "2") {
  const std::string dump = temp / ("dump" + seed);
  succeed({"synth", dump, "--layers", layers, "--q-heads", "4", "--kv-heads", "2", "--head-dim", "32",
           "--prompt", "96", "--decode", "6", "--gradients", "4", "--seed", seed, "--quiet"});
  return dump;
}

/// Results of `evict` for several levers, on one dump or several.
fs::path levers(const TempDir& temp, const std::vector<std::string>& dumps,
                const std::string& bits = "16,8,4,2", const std::string& name = "levers") {
  succeed(joined(joined({"evict"}, dumps),
                 {"--out", temp / name, "--policy", "none,snapkv[window=8],streaming", "--keep",
                  "75%,50%,25%", "--bits", bits, "--residual", "0", "--group", "16", "--quiet"}));
  return temp / name;
}

Json stored(const fs::path& results, const std::string& format) {
  return Json::parse(file_text(results / "summary.json"))
      .at("options")
      .at("evict")
      .at("stored")
      .at(format)
      .at(0);
}

Json recipe_of(const std::vector<Json>& layers) {
  return {{"program", "kvreplay"}, {"kind", "recipe"}, {"schema", 1}, {"model", ""}, {"layers", layers}};
}

struct Shown {
  Json json;
  const Json& first() const { return json.at("recommendations").at(0); }
  const Json& best() const { return first().at("candidates").at(0); }
};
Shown recommended(const fs::path& results, const std::vector<std::string>& more) {
  return {Json::parse(succeed(joined({"recommend", results, "--json"}, more)).out)};
}

}  // namespace

TEST_CASE("a recipe that is the same everywhere is the case that it is made of", "[recommend]") {
  const TempDir temp;
  const std::string dump = dump_of(temp, "3");
  const fs::path all = levers(temp, {dump});
  const Json layer = {{"policy", "snapkv[window=8]"},
                      {"semantics", "paper"},
                      {"sigma", {0.5, 0.5}},
                      {"stored", stored(all, "4")}};
  write_file(temp / "half.json", recipe_of({layer, layer}).dump());
  const Json whole = {{"policy", "none"}, {"sigma", {0, 0}}};
  write_file(temp / "nothing.json", recipe_of({whole, whole}).dump());
  succeed(
      {"evict", dump, "--out", temp / "r", "--recipe",
       fmt::format("{},none_at_all={}", (temp / "half.json").string(), (temp / "nothing.json").string())});
  const Evictions cases(all), found(temp / "r");
  for (const std::string scope : {"0,0", "0,1", "1,0", "0,", "1,", ","})
    for (const std::string& figure : kFigures) {
      const std::string rows = figure == "bytes" ? "" : "future";
      INFO(scope << " " << figure);
      const std::string same = "snapkv[window=8]~4,paper,prefill,0.5";
      REQUIRE(cases.has(scope, same, rows, figure) ==
              found.has(scope, "recipe~half,given,prefill,", rows, figure));
      if (!cases.has(scope, same, rows, figure)) continue;
      CHECK(found.at(scope, "recipe~half,given,prefill,", rows, figure) ==
            cases.at(scope, same, rows, figure));
      CHECK(found.at(scope, "recipe~none_at_all,given,prefill,", rows, figure) ==
            (figure == "bytes" ? cases.at(scope, "none~16,paper,prefill,", rows, figure) : 0));
    }
  // Files and options that kvvalidate reads.
  CHECK(fs::exists(temp / "r/layer_01/kept/recipe~half-given-prefill-48.npy"));
  const Json options = Json::parse(file_text(temp / "r/summary.json")).at("options").at("evict");
  CHECK(options.at("stored").at("half").at(1) == stored(all, "4"));
  CHECK(options.at("recipes").at("half") != options.at("recipes").at("none_at_all"));
}

TEST_CASE("every head takes what its recipe says of it", "[recommend]") {
  const TempDir temp;
  const std::string dump = dump_of(temp, "4");
  const fs::path all = levers(temp, {dump});
  write_file(temp / "mixed.json",
             recipe_of({{{"policy", "snapkv[window=8]"}, {"sigma", {0.75, 0}}, {"stored", stored(all, "8")}},
                        {{"policy", "streaming"}, {"sigma", {0.25, 0.5}}, {"stored", stored(all, "2")}}})
                 .dump());
  succeed({"evict", dump, "--out", temp / "r", "--recipe", temp / "mixed.json"});
  const Evictions cases(all), found(temp / "r");
  const std::map<std::string, std::string> heads{{"0,0", "snapkv[window=8]~8,paper,prefill,0.75"},
                                                 {"0,1", "none~8,paper,prefill,"},
                                                 {"1,0", "streaming~2,paper,prefill,0.25"},
                                                 {"1,1", "streaming~2,paper,prefill,0.5"}};
  for (const auto& [scope, of] : heads)
    for (const std::string figure : {"output_error", "loss_row", "bytes"}) {
      const std::string rows = figure == "bytes" ? "" : "future";
      INFO(scope << " " << figure);
      CHECK(found.at(scope, "recipe~mixed,given,prefill,", rows, figure) ==
            cases.at(scope, of, rows, figure));
    }
}

TEST_CASE("what is recommended fits, costs least, and comes to what it says", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, "5"), dump_of(temp, "6"), dump_of(temp, "7")};
  const fs::path all = levers(temp, dumps);
  const Shown shown = recommended(all, {"--bytes", "30%", "--out", temp / "r-{bytes}-{way}.json"});
  CHECK(shown.json.at("prompts") == Json({"dump5", "dump6", "dump7"}));
  CHECK(shown.json.at("unit") == "nats a token, predicted");
  std::map<std::string, Json> ways;
  double before = 0;
  for (const Json& one : shown.first().at("candidates")) {
    INFO(one.dump());
    CHECK(one.at("bytes") <= 0.3 + 1e-6);
    CHECK(one.at("nats").at("mean") >= before);
    before = one.at("nats").at("mean");
    CHECK(one.at("of_prompts").size() == 3);
    CHECK(std::abs(one.at("gap_to_bound").get<double>()) < 1e-9);
    ways[one.at("levers").get<std::string>() + " " + one.at("where").get<std::string>()] = one;
    // All of it at once takes as much, and costs what it says but for what heads do together.
    const std::string file = temp / fmt::format("r-30-{}-{}.json",
                                                one.at("levers") == "tokens and bits" ? "both"
                                                : one.at("levers") == "bits alone"    ? "bits"
                                                                                      : "tokens",
                                                one.at("where").get<std::string>());
    succeed(joined(joined({"evict"}, dumps),
                   {"--out", temp / "run", "--recipe", "it=" + file, "--force", "--quiet"}));
    double bytes = 0, nats = 0;
    for (const std::string name : {"dump5", "dump6", "dump7"}) {
      const Evictions found(temp / ("run/" + name));
      bytes += found.at(",", "recipe~it,given,prefill,", "", "bytes") / (96 * 2 * 2 * 64 * 2) / 3;
      nats += found.at(",", "recipe~it,given,prefill,", "future", "loss_step") / 3;
    }
    CHECK(bytes == Approx(one.at("bytes").get<double>()));
    // Between two measured budgets, nats are interpolated.
    if (!one.at("interpolated"))
      CHECK(nats == Approx(one.at("chosen_on_all").get<double>())
                        .epsilon(one.at("where") == "everywhere" ? 1e-6 : 0.5));
  }
  // A candidate with more freedom costs no more than a measured uniform one. A candidate that coincides with
  // another one is not listed twice.
  const auto on_all = [&](const std::string& levers, const std::string& where) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [name, one] : ways)
      if ((one.at("levers") == levers || levers == "tokens and bits") &&
          (one.at("where") == where || where == "each") && !one.at("interpolated"))
        least = std::min(least, one.at("chosen_on_all").get<double>());
    return least;
  };
  REQUIRE(ways.contains("tokens and bits each"));
  CHECK(ways.at("tokens and bits each").at("chosen_on_all") == on_all("tokens and bits", "each"));
  for (const std::string levers : {"tokens alone", "bits alone"})
    if (ways.contains(levers + " each"))
      CHECK(ways.at(levers + " each").at("chosen_on_all") == on_all(levers, "each"));
  // The best everywhere, from the tables.
  double least = std::numeric_limits<double>::infinity();
  const std::vector<std::string> names{"dump5", "dump6", "dump7"};
  std::vector<Evictions> tables;
  for (const std::string& name : names) tables.emplace_back(all / name);
  for (const CsvRow& row : tables.front().rows()) {
    if (row.at("metric") != "bytes" || !row.at("layer").empty() ||
        std::stod(row.at("value")) > 0.3 * 96 * 2 * 2 * 64 * 2)
      continue;
    double sum = 0;
    for (const Evictions& table : tables)
      sum += table.at(",", fmt::format("{},paper,prefill,{}", row.at("policy"), row.at("budget")), "future",
                      "loss_step") /
             3;
    least = std::min(least, sum);
  }
  double everywhere = std::numeric_limits<double>::infinity();
  for (const auto& [way, one] : ways)
    if (way.ends_with("everywhere")) everywhere = std::min(everywhere, one.at("chosen_on_all").get<double>());
  // The best may also be a budget between two measured ones.
  CHECK(everywhere <= least * (1 + 1e-6));
  CHECK(std::any_of(ways.begin(), ways.end(), [&](const auto& way) {
    return way.second.at("interpolated") || way.second.at("chosen_on_all") == Approx(least);
  }));

  // A prompt is judged by what the others choose.
  const Shown without =
      recommended(all, {"--bytes", "30%", "--without", "dump6", "--out", temp / "without-{way}.json"});
  CHECK(without.json.at("prompts") == Json({"dump5", "dump7"}));
  REQUIRE(fs::exists(temp / "without-both-each.json"));
  succeed({"evict", dumps[1], "--out", temp / "left", "--recipe",
           "it=" + (temp / "without-both-each.json").string()});
  const double step = Evictions(temp / "left").at(",", "recipe~it,given,prefill,", "future", "loss_step");
  CHECK(ways.at("tokens and bits each").at("of_prompts").at(1) == Approx(step).epsilon(0.5));

  // Bytes of a context.
  const Shown bytes = recommended(all, {"--bytes", "0.3MB", "--context", "1000", "--batch", "2"});
  CHECK(bytes.first().at("share") == Approx(0.3e6 / (1000 * 2 * 2 * 2 * 64 * 2)));

  // The report draws it.
  const std::string page = report_of(all);
  CHECK(contains(page, "Which recipe within so many bytes?"));
  CHECK(contains(
      page, "<pre>{\n &quot;program&quot;: &quot;kvreplay&quot;,\n &quot;kind&quot;: &quot;recipe&quot;"));

  // A single prompt has no other prompt to be judged on, and no interval.
  const Shown one = recommended(all / "dump5", {"--bytes", "30%"});
  CHECK(one.best().at("of_prompts").empty());
  CHECK(one.best().at("nats").at("low").is_null());
  CHECK(
      contains(succeed({"recommend", all / "dump5", "--bytes", "30%"}).out, "fewer than 4 have no interval"));
  CHECK(
      contains(succeed({"recommend", all, "--bytes", "0.1%"}).out, "nothing that was measured is as small"));
}

TEST_CASE("what an engine cannot do is not recommended to it", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, "8", "3"), dump_of(temp, "9", "3")};
  const fs::path all = levers(temp, dumps, "16,fp8,nvfp4,kfp8vnvfp4,q8_0,q4_0,kq8_0vq4_0");
  const auto recipe = [&](const std::string& engine, const std::string& bytes) {
    succeed({"recommend", all, "--bytes", bytes, "--for", engine, "--out", temp / "r.json", "--quiet"});
    return Json::parse(file_text(temp / "r.json"));
  };
  const auto formats = [](const Json& recipe) {
    std::vector<std::string> found;
    for (const Json& layer : recipe.at("layers"))
      found.push_back(layer.at("stored").at("k").get<std::string>() +
                      layer.at("stored").at("v").get<std::string>());
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  };
  const auto evicts = [](const Json& recipe) {
    return std::any_of(recipe.at("layers").begin(), recipe.at("layers").end(),
                       [](const Json& layer) { return layer.at("policy") != "none"; });
  };
  using Names = std::vector<std::string>;
  const Json vllm = recipe("vllm", "70%");
  CHECK_FALSE(evicts(vllm));
  CHECK(contains(vllm.at("chosen").at("told"), "--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers "));
  CHECK(formats(vllm) == Names{"1616", "fp8fp8"});
  CHECK(formats(recipe("vllm", "50%")) == Names{"fp8fp8"});
  CHECK(formats(recipe("trtllm", "70%")) == Names{"fp8fp8"});
  CHECK(recipe("trtllm", "30%").at("chosen").at("told") ==
        "LLM(model=..., kv_cache_config=KvCacheConfig(dtype=\"nvfp4\"))");
  CHECK(recipe("llama.cpp", "45%").at("chosen").at("told") ==
        "llama-server -m MODEL -fa on -ctk q8_0 -ctv q4_0  # on CUDA, a build with "
        "-DGGML_CUDA_FA_ALL_QUANTS=ON");
  CHECK(recipe("sglang", "50%").at("chosen").at("told") ==
        "python3 -m sglang.launch_server --model-path MODEL --kv-cache-dtype fp8_e4m3");
  const std::string quantized = recipe("modelopt", "45%").at("chosen").at("told");
  const Json quantization = Json::parse(quantized.substr(quantized.find('{'))).at("quantization");
  CHECK(quantization.at("kv_cache_quant_algo") == "MIXED_PRECISION");
  CHECK(quantization.at("kv_cache_quantized_layers").size() == 3);
  for (const auto& [layer, of_layer] : quantization.at("kv_cache_quantized_layers").items())
    CHECK((of_layer.at("quant_algo") == "FP8" || of_layer.at("quant_algo") == "NVFP4" ||
           of_layer.at("quant_algo") == "FP8_K_NVFP4_V"));
  const Json press = recipe("kvpress", "40%");
  CHECK(formats(press) == Names{"1616"});
  Names policies;
  for (const Json& layer : press.at("layers"))
    if (layer.at("policy") != "none") policies.push_back(layer.at("policy"));
  REQUIRE_FALSE(policies.empty());
  CHECK(std::count(policies.begin(), policies.end(), policies.front()) == std::ssize(policies));
  CHECK(evicts(recipe("any", "10%")));
}

TEST_CASE("an engine's formats cost what the model loses as it writes them", "[recommend]") {
  const TempDir temp;
  const std::vector<std::string> dumps{dump_of(temp, "8"), dump_of(temp, "9")};
  for (const std::string& dump : dumps)
    for (const char* layer : {"layer_00/k.npy", "layer_01/k.npy"}) {
      Npy k = npy_file(fs::path(dump) / layer);
      std::vector<float> biased = k.as<float>();
      for (std::size_t i = 5; i < biased.size(); i += 32) biased[i] += 40;
      write_file(fs::path(dump) / layer, npy("<f4", k.shape, biased).bytes());
    }
  const fs::path all = temp / "all";
  succeed(joined(joined({"evict"}, dumps), {"--out", all, "--policy", "none", "--bits", "16,q8_0,kq4_0vq8_0",
                                            "--center", "none,k", "--quiet"}));
  const auto notes = [&](const std::string& engine) {
    return recommended(all, {"--bytes", "45%", "--for", engine})
        .json.value("engine_notes", Json::array())
        .dump();
  };
  CHECK(contains(notes("llama.cpp"), "llama.cpp loses more than these stored caches"));
  CHECK(contains(notes("llama.cpp"), "times on SmolLM2"));
  CHECK(contains(notes("llama.cpp"), "would help: keys of kq4_0vq8_0 centered lose"));
  CHECK(notes("any") == "[]");
  CHECK(contains(succeed({"recommend", all, "--bytes", "45%", "--for", "llama.cpp"}).out,
                 "no engine centers them\n"));

  // As kvvalidate.py --written would say.
  const auto validate = [&](const std::string& dump, bool whole) {
    std::string table = "policy,semantics,phase,budget,kept,protocol,metric,value\n";
    for (const auto& [name, kl] :
         {std::pair("q8_0", 0.5), std::pair("kq4_0vq8_0", 0.25), std::pair("kq4_0vq8_0+center", 0.05)})
      if (whole || name != std::string("q8_0"))
        table += fmt::format(
            "none~{0},paper,prefill,,96,stored,kl,9\nnone~{0},paper,prefill,,96,written,kl,{1}\n", name, kl);
    write_file(all / dump / "validate.csv", table);
    const Json summary = Json::parse(file_text(all / dump / "summary.json"));
    write_file(all / dump / "validate.json",
               Json{{"results", summary.at("files_xxh3")}, {"finished", true}}.dump());
  };
  validate("dump8", true);
  validate("dump9", false);
  CHECK(contains(notes("llama.cpp"), "loses more than these stored caches"));
  validate("dump9", true);
  const Shown shown = recommended(all, {"--bytes", "60%", "--for", "llama.cpp"});
  CHECK(shown.json.at("unit") == "nats a token, written");
  CHECK(shown.json.at("engine_notes") ==
        Json{"would help: keys of kq4_0vq8_0 centered lose 5 times less, and no engine centers them"});
  CHECK(contains(shown.best().at("text"), "kq4_0vq8_0"));
  for (const double nats : shown.best().at("of_prompts")) CHECK(nats == Approx(0.25));
  CHECK(contains(shown.json.at("report"), "measured as an engine writes its cache"));
  CHECK(recommended(all, {"--bytes", "60%"}).json.at("unit") == "nats a token, predicted");
}

TEST_CASE("without gradients output errors are what is made small", "[recommend]") {
  const TempDir temp;
  make_small_dump(temp / "d");
  succeed({"evict", temp / "d", "--out", temp / "r", "--policy", "none,snapkv", "--keep", "75%,60%", "--bits",
           "16,8,4", "--residual", "0"});
  const Shown shown = recommended(temp / "r", {"--bytes", "40%"});
  CHECK(shown.json.at("unit") == "output error");
  CHECK(shown.best().at("output_error").at("mean") > 0);
  CHECK(contains(succeed({"recommend", temp / "r", "--bytes", "40%"}).out,
                 "Output error (no gradients), mean over heads"));
}

TEST_CASE("recipes and results that cannot be used are refused in a line", "[recommend]") {
  const TempDir temp;
  const std::string dump = dump_of(temp, "2");
  const Json good = {{"policy", "snapkv"}, {"sigma", {0.5, 0.5}}};
  struct Bad {
    Json layers;
    std::string said;
  };
  const auto with = [&](const char* key, const Json& value) {
    Json layer = good;
    layer[key] = value;
    return Json::array({good, layer});
  };
  const std::vector<Bad> bad{
      {Json::array(), "layers: expected a list of all layers, found []"},
      {Json::array({good}), "bad.json: expected the dump's 2 layers, found 1"},
      {with("sigma", Json({0.5})), "layer 1: sigma: expected the dump's 2 KV heads, found 1"},
      {with("sigma", Json({0.5, 1})),
       "layer 1: sigma: expected compression ratios, at least 0 and below 1, found 1"},
      {with("sigma", Json({0.5, -1})), "layer 1: sigma"},
      {with("sigma", 0.5), "layer 1: sigma: expected a list, of every KV head, found 0.5"},
      {with("policy", "none"), "layer 1: sigma: expected 0 without a policy, found 0.5"},
      {with("tokens", Json::array({8, nullptr})),
       "layer 1: tokens: expected null where sigma is above 0, found 8"},
      {with("tokens", Json::array({nullptr})), "layer 1: tokens: expected 2 as of sigma, found 1"},
      {with("tokens", Json::array({nullptr, 0.5})),
       "layer 1: tokens: expected whole numbers of at least 1, or null, found 0.5"},
      {with("policy", "snapkvv"), "layer 1: policy: expected a policy that ranks tokens and evicts, or none"},
      {with("policy", "quest"),
       "layer 1: policy: expected a policy that ranks tokens and evicts, or none, found 'quest'"},
      {with("policy", "greedy_exact"), "layer 1: policy: expected a policy that ranks tokens"},
      {with("semantics", "paperr"), "layer 1: semantics: expected paper, official"},
      {with("keep", 3), "layer 1: unknown key \"keep\""},
      {with("stored", 4), "layer 1: stored: expected an object, found 4"},
      {with("stored", {{"k", "7"}}), "layer 1: stored: k: expected 16, 2"},
      {with("stored", {{"k", "q8_0"}, {"turned", {12, 0}}}),
       "layer 1: stored: turned: expected 0 or powers of two, found 12"},
      {with("stored", {{"k", "4"}, {"residual", -1}}),
       "layer 1: stored: residual: expected whole numbers of at least 0, found -1"},
      {with("stored", {{"k", "4"}, {"turned", {64, 0}}}),
       "layer 1: stored: expected heads of a multiple of 64 numbers"},
  };
  for (const Bad& one : bad) {
    Json recipe = recipe_of({});
    recipe["layers"] = one.layers;
    write_file(temp / "bad.json", recipe.dump());
    const std::string line = refusal({"evict", dump, "--recipe", temp / "bad.json"}, temp / "n");
    INFO(line);
    CHECK(contains(line, one.said));
  }
  write_file(temp / "bad.json", R"({"kind": "shopping list"})");
  CHECK(contains(refusal({"evict", dump, "--recipe", temp / "bad.json"}, temp / "n"),
                 "expected a recipe, as kvreplay recommend writes it"));
  write_file(temp / "bad.json", "{");
  CHECK(contains(refusal({"evict", dump, "--recipe", temp / "bad.json"}, temp / "n"), "bad.json"));
  CHECK(contains(refusal({"evict", dump, "--recipe", temp / "missing.json"}, temp / "n"), "missing.json"));
  write_file(temp / "good.json", recipe_of({good, good}).dump());
  CHECK(contains(refusal({"evict", dump, "--recipe", temp / "good.json", "--keep", "20%"}, temp / "n"),
                 "excludes"));
  CHECK(contains(
      refusal({"evict", dump, "--recipe", fmt::format("{0},{0}", (temp / "good.json").string())}, temp / "n"),
      "expected one recipe of a name"));

  const auto refused = [](const std::vector<std::string>& arguments) {
    return complaint(joined({"recommend"}, arguments));
  };
  const fs::path all = levers(temp, {dump});
  CHECK(contains(refused({all}), "--bytes: expected the size of the cache"));
  CHECK(contains(refused({all, "--bytes", "120%"}),
                 "--bytes: expected a share as 20% or 0.2, or bytes as 1.5GiB or "
                 "800MiB, found '120%'"));
  CHECK(contains(refused({all, "--bytes", "1,5GiB"}),
                 "found '1' (a comma separates budgets; 1.5GiB has a "
                 "decimal point, all bytes are 100%)"));
  for (const std::string bytes : {"1KiB", "1kib", "1024e-3kb"})
    CHECK_FALSE(contains(complaint({"recommend", all, "--bytes", bytes}), "expected a share"));
  CHECK(contains(refused({all, "--bytes", "1GiB"}),
                 "--context: expected how many tokens of a sequence these bytes are for, found none"));
  CHECK(contains(refused({all, "--bytes", "20%", "--for", "tgi"}), "--for: expected any, kvpress, vllm"));
  CHECK(contains(refused({all, "--bytes", "20%", "--without", "x"}),
                 "--without: expected some of levers, found 'x'"));
  CHECK(contains(refused({all, "--bytes", "20%", "--without", "levers"}),
                 "--without: expected a prompt to be left, found none"));
  CHECK(contains(refused({all, "--bytes", "20%,10%", "--out", temp / "x.json"}),
                 "{bytes} in the name of one of several recipes"));
  CHECK(contains(refused({dump, "--bytes", "20%"}), "summary.json"));
  succeed({"evict", dump, "--out", temp / "pinned", "--policy", "snapkv", "--keep", "50%", "--sinks", "4",
           "--quiet"});
  CHECK(contains(refused({temp / "pinned", "--bytes", "60%"}), "policies with options of their own"));
  succeed({"evict", dump, "--out", temp / "part", "--policy", "snapkv", "--keep", "50%", "--layers", "1",
           "--quiet"});
  CHECK(contains(refused({temp / "part", "--bytes", "60%"}), "expected all 2 layers of the dump, found 1"));
  succeed({"evict", dump, "--out", temp / "oracle", "--policy", "oracle_exact", "--keep", "50%", "--quiet"});
  CHECK(contains(refused({temp / "oracle", "--bytes", "60%"}),
                 "that recipes can have, in all prompts, found none"));
  succeed({"tokens", dump, "--out", temp / "tokens", "--quiet"});
  CHECK(contains(refused({temp / "tokens", "--bytes", "60%"}),
                 "expected results of evict or analyze, found none of evictions"));
}

TEST_CASE("the schema has the fields and formats that recipes have", "[recommend]") {
  const TempDir temp;
  const fs::path all = levers(temp, {dump_of(temp, "1")});
  succeed({"recommend", all, "--bytes", "40%", "--out", temp / "r.json", "--quiet"});
  const Json recipe = Json::parse(file_text(temp / "r.json"));
  const Json schema =
      Json::parse(file_text(source_dir() / "analysis/eviction/recipe.schema.json")).at("properties");
  const auto keys = [](const Json& object) {
    std::vector<std::string> found;
    for (const auto& [key, value] : object.items()) found.push_back(key);
    return found;
  };
  const Json& layer = schema.at("layers").at("items").at("properties");
  const Json& stored_as = layer.at("stored").at("properties");
  CHECK(keys(recipe) == keys(schema));
  Json of_layer = recipe.at("layers").at(0);
  CHECK_FALSE(of_layer.contains("tokens"));  // there only where budgets are in tokens
  of_layer["tokens"] = nullptr;
  CHECK(keys(of_layer) == keys(layer));
  Json stored = recipe.at("layers").at(0).at("stored");
  for (const char* seldom : {"centered", "scales"}) {  // there only where keys are centered or scaled
    CHECK_FALSE(stored.contains(seldom));
    stored[seldom] = nullptr;
  }
  std::vector<std::string> in_schema = keys(stored_as), of_recipe = keys(stored);
  std::sort(in_schema.begin(), in_schema.end());
  std::sort(of_recipe.begin(), of_recipe.end());
  CHECK(of_recipe == in_schema);
  // An unknown word is refused with a list of all valid ones.
  const auto refused = [&](const Json& of_layer) {
    write_file(temp / "bad.json", recipe_of({of_layer}).dump());
    return refusal({"evict", temp / "dump1", "--recipe", temp / "bad.json"}, temp / "n");
  };
  for (const auto& [values, line] :
       {std::pair(stored_as.at("k").at("enum"), refused({{"sigma", {0, 0}}, {"stored", {{"k", "?"}}}})),
        std::pair(stored_as.at("v").at("enum"), refused({{"sigma", {0, 0}}, {"stored", {{"v", "?"}}}})),
        std::pair(stored_as.at("keys").at("enum"), refused({{"sigma", {0, 0}}, {"stored", {{"keys", "?"}}}})),
        std::pair(layer.at("semantics").at("enum"), refused({{"sigma", {0, 0}}, {"semantics", "?"}}))}) {
    std::string names;
    for (std::size_t n = 0; n < values.size(); ++n)
      names += (n == 0 ? "" : n + 1 == values.size() ? " or " : ", ") + values.at(n).get<std::string>();
    INFO(line);
    CHECK(contains(line, "expected " + names + ", found '?'"));
  }
}
