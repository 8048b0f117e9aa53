#include "analysis/engine/engine.hpp"

#include "analysis/eviction/cache_format.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

// KV cache formats of engines: the table is compared with values read in the engines' sources, and every
// printed command line with the table.

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

constexpr OptionFacts kBits{.name = "bits"}, kRotate{.name = "rotate"};
constexpr Engine kWithFormats[] = {Engine::vllm, Engine::sglang, Engine::trtllm, Engine::modelopt,
                                   Engine::llama_cpp};

DumpShape shape_of(Index layers, Index d) {
  DumpShape shape;
  shape.layers = layers;
  shape.n_q = shape.n_kv = 2;
  shape.d = shape.d_v = d;
  return shape;
}

/// The runs of `--bits WORD` with further options.
std::vector<CacheFormatRun> runs_of(const std::string& word, const DumpShape& shape,
                                    CacheFormatOptions options = {}) {
  options.formats = {OptionValue<CacheFormat>::parse(kBits, word)};
  return cache_format_runs(options, shape, kBits, kRotate);
}
CacheFormatRun run_of(const std::string& word, const DumpShape& shape, CacheFormatOptions options = {}) {
  if (!options.residual) options.residual = 0;
  return runs_of(word, shape, std::move(options)).front();
}

/// "fp8: llama.cpp has no such format"; empty where the engine runs it.
std::string mismatch(Engine engine, const CacheFormatRun& run, const DumpShape& shape) {
  const auto found = why_not_run(engine, run.of_layers, shape);
  return found ? found->what + ": " + found->why : "";
}

/// The word after an option: "q8_0" for -ctk in "llama-server .. -ctk q8_0 .."; empty if absent.
std::string behind(const std::string& line, const std::string& option) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word == option) return words >> word, word;
  return "";
}

/// The names of the key and value formats on a command line or in a configuration.
std::pair<std::string, std::string> names_in(Engine engine, const std::string& line) {
  const auto twice = [](const std::string& name) { return std::pair(name, name); };
  switch (engine) {
    case Engine::vllm:
    case Engine::sglang:
      return twice(behind(line, "--kv-cache-dtype"));
    case Engine::trtllm:
      return twice(line.substr(line.find('"') + 1, line.rfind('"') - line.find('"') - 1));
    case Engine::modelopt: {
      const Json algo = Json::parse(line.substr(line.find('{'))).at("quantization").at("kv_cache_quant_algo");
      return twice(algo.is_null() ? "null" : algo.get<std::string>());
    }
    case Engine::llama_cpp:
      return {behind(line, "-ctk"), behind(line, "-ctv")};
    case Engine::any:
    case Engine::kvpress:
      break;
  }
  return {};
}

}  // namespace

TEST_CASE("an engine's formats are what its source says", "[engine]") {
  // Read in the engines' sources: vLLM vllm/config/cache.py, turboquant/config.py; SGLang
  // arg_groups/fields/model.py; TensorRT-LLM KvCacheConfig; llama.cpp common/arg.cpp, src/llama-kv-cache.cpp.
  struct Read {
    Engine engine;
    std::string keys, values;  ///< in the engine's spelling
    std::string k, v;          ///< in kvreplay's spelling
    double bytes = 0;          ///< per key and value of 128 numbers
    Index ends = 0;
    Index k_turned = 0, v_turned = 0;
  };
  const double fp8 = 256, nvfp4 = 2 * (64 + 8), q8 = 4 * 34, q4 = 4 * 18;
  const std::vector<Read> all = {
      {Engine::vllm, "auto", "auto", "16", "16", 512},
      {Engine::vllm, "fp8", "fp8", "fp8", "fp8", fp8},
      {Engine::vllm, "fp8_per_token_head", "fp8_per_token_head", "fp8_per_token_head", "fp8_per_token_head",
       fp8 + 8},
      {Engine::vllm, "int8_per_token_head", "int8_per_token_head", "int8_per_token_head",
       "int8_per_token_head", fp8 + 8},
      {Engine::vllm, "nvfp4", "nvfp4", "nvfp4", "nvfp4", nvfp4},
      {Engine::vllm, "turboquant_k8v4", "turboquant_k8v4", "fp8", "4", 128 + 64 + 4, 2},
      {Engine::vllm, "turboquant_4bit_nc", "turboquant_4bit_nc", "tq4", "4", 64 + 2 + 64 + 4, 2},
      {Engine::vllm, "turboquant_k3v4_nc", "turboquant_k3v4_nc", "tq3", "4", 48 + 2 + 64 + 4, 2},
      {Engine::vllm, "turboquant_3bit_nc", "turboquant_3bit_nc", "tq3", "3", 48 + 2 + 48 + 4, 2},
      {Engine::sglang, "auto", "auto", "16", "16", 512},
      {Engine::sglang, "fp8_e4m3", "fp8_e4m3", "fp8", "fp8", fp8},
      {Engine::sglang, "mxfp8", "mxfp8", "mxfp8", "mxfp8", fp8 + 8},
      {Engine::sglang, "nvfp4", "nvfp4", "nvfp4", "nvfp4", nvfp4},
      {Engine::trtllm, "auto", "auto", "16", "16", 512},
      {Engine::trtllm, "fp8", "fp8", "fp8", "fp8", fp8},
      {Engine::trtllm, "nvfp4", "nvfp4", "nvfp4", "nvfp4", nvfp4},
      {Engine::modelopt, "null", "null", "16", "16", 512},
      {Engine::modelopt, "FP8", "FP8", "fp8", "fp8", fp8},
      {Engine::modelopt, "NVFP4", "NVFP4", "nvfp4", "nvfp4", nvfp4},
      {Engine::modelopt, "FP8_K_NVFP4_V", "FP8_K_NVFP4_V", "fp8", "nvfp4", fp8 / 2 + nvfp4 / 2},
      {Engine::llama_cpp, "f16", "f16", "16", "16", 512},
      {Engine::llama_cpp, "q8_0", "q8_0", "q8_0", "q8_0", 2 * q8, 0, 128, 64},
      {Engine::llama_cpp, "q8_0", "q4_0", "q8_0", "q4_0", q8 + q4, 0, 128, 64},
      {Engine::llama_cpp, "q4_0", "f16", "q4_0", "16", q4 + 256, 0, 128, 0},
      {Engine::llama_cpp, "f16", "q5_1", "16", "q5_1", 256 + 4 * 24, 0, 0, 64},
      {Engine::llama_cpp, "q5_0", "q4_1", "q5_0", "q4_1", 4 * 22 + 4 * 20, 0, 128, 64},
  };
  const DumpShape shape = shape_of(24, 128);
  std::map<Engine, std::size_t> count;
  for (const Read& read : all) {
    INFO(kEngines[read.engine].name << " " << read.keys << " " << read.values);
    ++count[read.engine];
    const std::vector<CacheFormatRun> runs = runs_of(std::string(kEngines[read.engine].name), shape);
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const CacheFormatRun& one) {
      const Quantization& middle = one.of_layers[12];
      return name_of(middle.k.format) == read.k && name_of(middle.v.format) == read.v;
    });
    REQUIRE(run != runs.end());
    const auto names = names_in(read.engine, engine_flags(read.engine, run->of_layers, shape));
    CHECK(names == std::pair(read.keys, read.values));
    double bytes = 0;
    for (Index layer = 0; layer < 24; ++layer) {
      const Quantization& stored = run->of_layers[static_cast<std::size_t>(layer)];
      const bool is_end = layer < read.ends || layer >= 24 - read.ends;
      CHECK((stored.k.format == NumberFormat::exact) == (is_end || read.k == "16"));
      CHECK((stored.v.format == NumberFormat::exact) == (is_end || read.v == "16"));
      CHECK(stored.residual == 0);
      CHECK_FALSE(stored.k.per_channel);
      CHECK(stored.k.turned == read.k_turned);
      CHECK(stored.v.turned == read.v_turned);
      for (const StoredAs& as : {stored.k, stored.v}) {
        const NumberFormatFacts& facts = kNumberFormats[as.format];
        const Index block = facts.uniform ? stored.group : facts.block > 0 ? facts.block : 128;
        bytes += 128 * facts.bits / 8.0 + static_cast<double>(128 / block * facts.scale_bytes);
      }
    }
    CHECK(bytes == (24 - 2 * read.ends) * read.bytes + 2 * read.ends * 512);
  }
  // The list above is complete. Of llama.cpp's 36 pairs, it has one for each case.
  for (const Engine engine : kWithFormats)
    if (!kEngines[engine].keys_apart) CHECK(formats_of(engine).size() == count[engine]);
  CHECK(formats_of(Engine::llama_cpp).size() == 36);
  // turboquant_4bit_nc of a model of 24 layers and heads of 128 takes 38.5 %, not 26.2 %.
  CHECK((20 * 134 + 4 * 512) / (24 * 512.0) == Approx(0.3848).margin(1e-4));
}

TEST_CASE("every format that --bits ENGINE measures runs in the engine as it is", "[engine]") {
  for (const Index d : {32, 64, 80, 96, 128, 192, 256})
    for (const Index layers : {1, 2, 3, 4, 24})
      for (const Engine engine : kWithFormats) {
        const DumpShape shape = shape_of(layers, d);
        const std::string word(kEngines[engine].name);
        std::set<std::string> names;
        CacheFormatOptions options;
        options.formats = {OptionValue<CacheFormat>::parse(kBits, word)};
        for (const CacheFormatRun& run : cache_format_runs(options, shape, kBits, kRotate)) {
          INFO(word << " " << run.name << ", " << layers << " layers, heads of " << d);
          CHECK(names.insert(run.name).second);
          CHECK(mismatch(engine, run, shape).empty());
          CHECK_FALSE(engine_flags(engine, run.of_layers, shape).empty());
          // A run's name parses to the run again, with the group and residual of engines.
          CacheFormatOptions again;
          again.keys = KeyGroups::token;
          again.group = d;
          const std::size_t plus = run.name.find('+');
          if (plus != std::string::npos)
            again.rotations = {OptionValue<Rotation>::parse(kRotate, run.name.substr(plus + 1))};
          const CacheFormatRun same = run_of(run.name.substr(0, plus), shape, again);
          CHECK(same.name == run.name);
          for (std::size_t layer = 0; layer < run.of_layers.size(); ++layer)
            CHECK((run.of_layers[layer] == same.of_layers[layer] ||
                   (run.of_layers[layer].stores_exactly() && same.of_layers[layer].stores_exactly())));
        }
        // Every format of the engine is either measured or listed as left out.
        CHECK(names.size() + formats_left_out(options, shape).size() == formats_of(engine).size());
        CHECK(names.count("16") == 1);
      }
}

TEST_CASE("what differs from an engine's table is not run by the engine", "[engine]") {
  const DumpShape shape = shape_of(24, 64);
  const auto why = [&](Engine engine, const CacheFormatRun& run) { return mismatch(engine, run, shape); };
  CacheFormatOptions engines;
  engines.group = 64;
  engines.keys = KeyGroups::token;
  const auto with = [&](const auto& change) {
    CacheFormatOptions options = engines;
    change(options);
    return options;
  };
  const auto rotated = [](const char* word) {
    return [word](CacheFormatOptions& options) {
      options.rotations = {OptionValue<Rotation>::parse(kRotate, word)};
    };
  };
  const std::string turbo = "ktq4v4;0,1,-2,-1:16";
  CHECK(why(Engine::vllm, run_of(turbo, shape, engines)).empty());
  CHECK(why(Engine::vllm, run_of("fp8", shape, engines)).empty());
  // Mismatches: residual, group, missing ends, another format, several formats.
  const CacheFormatOptions residual = with([](CacheFormatOptions& options) { options.residual = 256; });
  CHECK(why(Engine::vllm, run_of("fp8", shape, residual)) ==
        "fp8 with 256 recent tokens in 16 bits: vllm has no such window");
  CHECK(why(Engine::llama_cpp, run_of("q8_0", shape, residual)) ==
        "q8_0 with 256 recent tokens in 16 bits: llama.cpp has no such window");
  CHECK(why(Engine::vllm, run_of(turbo, shape, with([](CacheFormatOptions& options) {
                                   options.group = 32;
                                 }))) == "ktq4v4 with groups of 32: those of vllm are a head's 64 numbers");
  CHECK(why(Engine::vllm, run_of("ktq4v4", shape, engines)) ==
        "ktq4v4 in layer 0: vllm leaves the first 2 and last 2 in 16 bits");
  CHECK_FALSE(why(Engine::vllm, run_of("ktq4v4;0,1,-1:16", shape, engines)).empty());
  CHECK(why(Engine::vllm, run_of("tq4", shape, engines)) == "tq4: vllm has no such format");
  CHECK(why(Engine::vllm, run_of("fp8;3:nvfp4", shape, engines)) ==
        "nvfp4 beside fp8: vllm has one format for all layers");
  CHECK(why(Engine::vllm, run_of("fp8", shape, with(rotated("hadamard")))) ==
        "fp8 with keys rotated in blocks of 64: vllm rotates none");
  CHECK(why(Engine::sglang, run_of("fp8;3:16", shape, engines)) ==
        "fp8 but for layers in 16 bits: sglang has one format for all layers");
  CHECK(why(Engine::kvpress, run_of("8", shape, engines)) == "8: kvpress has no such format");
  CHECK(why(Engine::modelopt, run_of("fp8;3:nvfp4;4:16", shape, engines)).empty());
  CHECK(why(Engine::any, run_of("k4v2;3:nvfp4;4:16", shape, residual)).empty());
  // A layer that the user skips is named. The ends are not named, as vLLM skips them by default.
  const CacheFormatRun skips = run_of("ktq4v4;0,1,5,-2,-1:16", shape, engines);
  CHECK(why(Engine::vllm, skips).empty());
  CHECK(engine_flags(Engine::vllm, skips.of_layers, shape) ==
        "vllm serve MODEL --kv-cache-dtype turboquant_4bit_nc --kv-cache-dtype-skip-layers 5");
  // llama.cpp rotates quantized heads, unless rotation is disabled, for keys and values together.
  const auto flags = [&](const std::string& word, const DumpShape& of, const CacheFormatOptions& options) {
    const CacheFormatRun run = run_of(word, of, options);
    REQUIRE(mismatch(Engine::llama_cpp, run, of).empty());
    return engine_flags(Engine::llama_cpp, run.of_layers, of);
  };
  CHECK(flags("q8_0", shape, with(rotated("hadamard"))) ==
        "llama-server -m MODEL -fa on -ctk q8_0 -ctv q8_0");
  CHECK(flags("q8_0", shape, engines) ==
        "LLAMA_ATTN_ROT_DISABLE=1 llama-server -m MODEL -fa on -ctk q8_0 -ctv q8_0");
  CHECK(flags("16", shape, engines) == "llama-server -m MODEL -fa on -ctk f16 -ctv f16");
  CHECK(flags("kq8_0v16", shape, engines).starts_with("LLAMA_ATTN_ROT_DISABLE=1 "));
  CHECK(why(Engine::llama_cpp, run_of("q8_0", shape, with(rotated("k")))) ==
        "q8_0 with values not rotated: llama.cpp rotates blocks of 64");
  CHECK(why(Engine::llama_cpp, run_of("q8_0", shape, with(rotated("hadamard:32")))) ==
        "q8_0 with keys rotated in blocks of 32: llama.cpp rotates blocks of 64");
  // Heads of 128: one matrix for keys, blocks of 64 for values. Heads of 96 are not rotated.
  const DumpShape wide = shape_of(24, 128), odd = shape_of(24, 96);
  CHECK(mismatch(Engine::llama_cpp, run_of("q8_0", wide, with(rotated("hadamard"))), wide) ==
        "q8_0 with values rotated in blocks of 128: llama.cpp rotates blocks of 64");
  CHECK(flags("q8_0", wide, with(rotated("hadamard:128:64"))).starts_with("llama-server"));
  CHECK(flags("q8_0", odd, engines).starts_with("llama-server"));
  CHECK(mismatch(Engine::llama_cpp, run_of("q8_0", odd, with(rotated("hadamard"))), odd) ==
        "q8_0 with keys rotated in blocks of 32: llama.cpp rotates none");
}

TEST_CASE("engines are known by any spelling of their name", "[engine]") {
  for (const std::string word : {"llama.cpp", "llamacpp", "llama-cpp", "LLaMA_CPP"})
    CHECK(engine_named(word) == Engine::llama_cpp);
  for (const std::string word : {"vllm", "vLLM", "VLLM"}) CHECK(engine_named(word) == Engine::vllm);
  for (const std::string word : {"trtllm", "TRT-LLM", "TensorRT-LLM", "tensorrt_llm"})
    CHECK(engine_named(word) == Engine::trtllm);
  CHECK(engine_named("SGLang") == Engine::sglang);
  CHECK(engine_named("Model-Optimizer") == Engine::modelopt);
  for (const std::string word : {"", "tgi", "llama", "vllm2"}) CHECK_FALSE(engine_named(word));
  CHECK(OptionValue<CacheFormat>::parse(kBits, "vLLM").name == "vllm");
}

TEST_CASE("formats of layers that are counted from the end", "[engine]") {
  const auto exact = [](const std::string& word, Index layers) {
    std::string text;
    for (const Quantization& stored : run_of(word, shape_of(layers, 64)).of_layers)
      text += stored.stores_exactly() ? 'x' : '.';
    return text;
  };
  CHECK(exact("4;0,1,-2,-1:16", 6) == "xx..xx");
  CHECK(exact("4;-2--1:16", 6) == "....xx");
  CHECK(exact("4;1--2:16", 6) == ".xxxx.");
  CHECK(exact("4;first-2,last:16", 6) == "xxx..x");
  CHECK(exact("4;-1:16", 1) == "x");
  CHECK_THROWS_AS(exact("4;-2:16", 1), OptionError);
  CHECK_THROWS_AS(exact("4;-1--2:16", 6), OptionError);
  CHECK_THROWS_AS(exact("4;-0:16", 6), OptionError);
}

TEST_CASE("what recommend prints of an engine's whole list is what the recipe stores",
          "[engine][recommend]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  succeed({"synth", dump, "--layers", "6", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "64",
           "--prompt", "96", "--decode", "6", "--gradients", "4", "--seed", "5", "--quiet"});
  for (const Engine engine : kWithFormats) {
    const std::string name(kEngines[engine].name), results = temp / ("results-" + name);
    succeed({"evict", dump, "--out", results, "--policy", "none", "--bits", name, "--quiet"});
    std::set<std::pair<std::string, std::string>> printed;
    for (int percent = 100; percent >= 20; --percent) {
      const fs::path file = temp / "recipe.json";
      fs::remove(file);
      const auto ran = run_kvreplay({"recommend", results, "--bytes", fmt::format("{}%", percent), "--for",
                                     name, "--out", file, "--json"});
      if (!fs::exists(file)) continue;
      INFO(name << " within " << percent << " %");
      const Json told = Json::parse(ran.out), recipe = Json::parse(file_text(file));
      CHECK(told.at("left_out") == "");
      const std::string line = told.at("recommendations").at(0).at("told");
      CHECK(recipe.at("chosen").at("told") == line);
      // For each layer: the engine's names, or the layer's entry in the configuration.
      const auto [keys, values] = names_in(engine, line);
      printed.insert({keys, values});
      std::set<std::string> skipped;
      std::istringstream words(line.substr(std::min(line.size(), line.find("--kv-cache-dtype-skip-layers"))));
      for (std::string word; words >> word;) skipped.insert(word);
      Json of_layers;
      if (engine == Engine::modelopt)
        of_layers =
            Json::parse(line.substr(line.find('{'))).at("quantization").at("kv_cache_quantized_layers");
      for (std::size_t l = 0; l < 6; ++l) {
        const Json& stored = recipe.at("layers").at(l).at("stored");
        std::string k = keys, v = values;
        if (engine == Engine::modelopt)
          k = v = of_layers.value(fmt::format("model.layers.{}.self_attn", l), Json{{"quant_algo", "null"}})
                      .at("quant_algo");
        const auto entry = [&](const std::string& of) {
          const auto found = std::find_if(kEngines[engine].of.begin(), kEngines[engine].of.end(),
                                          [&](const EngineFormat& format) { return format.name == of; });
          REQUIRE(found != kEngines[engine].of.end());
          return *found;
        };
        const Index ends = entry(k).ends, layer = static_cast<Index>(l);
        const bool exact = skipped.count(std::to_string(l)) == 1 || layer < ends || layer >= 6 - ends;
        CHECK(stored.at("k") == (exact ? "16" : name_of(entry(k).k)));
        CHECK(stored.at("v") == (exact ? "16" : name_of(entry(v).v)));
        CHECK(stored.at("residual") == 0);
        const bool turns = engine == Engine::llama_cpp && !exact;
        CHECK(stored.at("turned") ==
              Json({turns && stored.at("k") != "16" ? 64 : 0, turns && stored.at("v") != "16" ? 64 : 0}));
        if (stored.at("v") == "4") CHECK(stored.at("group") == 64);
      }
    }
    CHECK(printed.size() > 2);
  }
}

TEST_CASE("an engine's boundary layers count in bytes and in error", "[engine][recommend]") {
  const TempDir temp;
  const std::string dump = temp / "dump", results = temp / "results";
  succeed({"synth", dump, "--layers", "6", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "64",
           "--prompt", "96", "--decode", "6", "--gradients", "4", "--seed", "6", "--quiet"});
  succeed({"evict", dump, "--out", results, "--policy", "none", "--bits", "vLLM", "--quiet"});
  const Evictions found{results};
  const std::string turbo = "none~ktq4v4;0,1,-2,-1:16,paper,prefill,", exact = "none~16,paper,prefill,";
  const double head = 96 * (32 + 2 + 32 + 4), whole = 96 * 256;
  for (const int layer : {0, 1, 4, 5}) {
    CHECK(found.at(fmt::format("{},0", layer), turbo, "", "bytes") == whole);
    CHECK(found.at(fmt::format("{},0", layer), turbo, "future", "output_error") == 0);
  }
  CHECK(found.at("2,0", turbo, "", "bytes") == head);
  CHECK(found.at("2,0", turbo, "future", "output_error") > 0);
  CHECK(found.at(",", turbo, "", "bytes") == 2 * (2 * head + 4 * whole));
  CHECK(found.at(",", exact, "", "bytes") == 12 * whole);
  // 75.8 % of the bytes in vLLM. No command line promises a smaller share under this name.
  const std::string line =
      Json::parse(succeed({"recommend", results, "--bytes", "76%", "--for", "VLLM", "--json"}).out)
          .at("recommendations")
          .at(0)
          .at("told");
  CHECK(contains(line, "--kv-cache-dtype "));
  // Options without effect on an engine's list are rejected. With a format of the user's, they apply to that
  // format.
  CHECK(contains(
      run_kvreplay({"evict", dump, "--out", temp / "n", "--bits", "vllm", "--residual", "128"}).err,
      "--bits vllm: expected no rotation, centering, scales, keys, group or residual, which the engine's "
      "table says"));
  succeed({"evict", dump, "--out", temp / "both", "--policy", "none", "--bits", "vllm,16,k8v4", "--residual",
           "32", "--rotate", "none,hadamard", "--quiet"});
  const Evictions both{temp / "both"};
  CHECK(both.has("0,0", "none~k8v4+hadamard,paper,prefill,", "", "bytes"));
  CHECK(both.at(",", turbo, "", "bytes") == found.at(",", turbo, "", "bytes"));
}

TEST_CASE("cases that an engine cannot run are left out, with their number and the reasons",
          "[engine][recommend]") {
  const TempDir temp;
  const std::string dump = temp / "dump", results = temp / "results";
  succeed({"synth", dump, "--layers", "6", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "64",
           "--prompt", "96", "--decode", "6", "--gradients", "4", "--seed", "7", "--quiet"});
  succeed({"evict", dump, "--out", results, "--policy", "none,streaming", "--keep", "50%,25%", "--bits",
           "16,fp8,ktq4v4", "--residual", "48", "--quiet"});
  const auto shown = run_kvreplay({"recommend", results, "--bytes", "100%", "--for", "vllm"});
  CHECK(contains(shown.out,
                 "left out for vllm, 8 cases of 9 measured: vllm keeps all in 6 cases (as evicting "
                 "tokens); vllm has no such window in 2 cases (as fp8 with 48 recent tokens in 16 bits)\n"));
  CHECK(contains(shown.out, "vllm serve MODEL --kv-cache-dtype auto"));
  CHECK_FALSE(contains(shown.out, "--kv-cache-dtype fp8"));
  CHECK_FALSE(contains(run_kvreplay({"recommend", results, "--bytes", "100%"}).out, "left out"));
  // The engines that run a recipe, for a recipe that was not chosen for one engine.
  const auto runs_in = [&](const std::string& bytes, const std::string& folder) {
    return Json::parse(succeed({"recommend", folder, "--bytes", bytes, "--json"}).out)
        .at("recommendations")
        .at(0)
        .at("told")
        .get<std::string>();
  };
  CHECK(runs_in("26%", results) ==
        "runs in kvreplay.press() alone: in transformers, where it saves no memory");
  const std::string formats = temp / "formats";
  succeed({"evict", dump, "--out", formats, "--policy", "none", "--bits", "fp8", "--quiet"});
  CHECK(runs_in("50%", formats) == "runs in vllm, sglang, trtllm, modelopt (--for says how)");
}

namespace {

/// An engine's row of the table in RECOMMEND.md.
std::string row_of(const EngineFacts& engine) {
  std::string formats;
  for (const EngineFormat& format : engine.of) {
    const std::string k(name_of(format.k)), v(name_of(format.v));
    const std::string name = k == v ? k : fmt::format("k{}v{}", k, v);
    std::vector<std::string> said;
    if (name != format.name && engine.id != Engine::kvpress) said.push_back(fmt::format("`{}`", format.name));
    if (format.ends > 0) said.push_back(fmt::format("first and last {} layers in 16 bits", format.ends));
    formats += fmt::format("{}`{}`{}", formats.empty() ? "" : ", ", name,
                           said.empty() ? "" : fmt::format(" ({})", fmt::join(said, ", ")));
  }
  if (formats.empty()) formats = "all";
  if (engine.turns > 0) formats += "; rotated";
  const std::string how = engine.of.size() == 1                         ? ""
                          : engine.formats == FormatsOf::layer          ? "one per layer: "
                          : engine.formats == FormatsOf::model_but_some ? "one; skipped layers in 16 bits: "
                          : engine.keys_apart                           ? "one for keys and one for values: "
                                                                        : "one: ";
  const auto or_dash = [](std::string_view text) {
    return text.empty() ? std::string("-") : std::string(text);
  };
  return fmt::format("| `{}` | {} | {}{} | {} | {} | {} |", engine.name,
                     !engine.evicts      ? "all"
                     : engine.one_policy ? "one policy, a budget per head"
                                         : "a policy per layer, a budget per head",
                     how, formats, or_dash(engine.others), or_dash(engine.windows), or_dash(engine.source));
}

}  // namespace

TEST_CASE("RECOMMEND.md has the engines' table", "[engine][docs]") {
  const std::string page = file_text(source_dir() / "analysis/recommend/RECOMMEND.md");
  std::string table =
      "<!-- engines -->\n| engine | tokens | formats, as `--bits` has them (its own name) | not in kvreplay "
      "| a layer "
      "with a window holds | read |\n|---|---|---|---|---|---|\n";
  for (const EngineFacts& engine : kEngines) table += row_of(engine) + "\n";
  INFO(table);
  CHECK(contains(page, table + "<!-- /engines -->\n"));
}
