#include "analysis/recommend/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

namespace kvreplay::recommend {
namespace {

/// "fp8", "kfp8v4": what a format is called where it has one name.
std::string name_of_both(const Quantization& stored) {
  const std::string_view k = name_of(stored.k.format), v = name_of(stored.v.format);
  return k == v ? std::string(k) : fmt::format("k{}v{}", k, v);
}

/// What the engine calls the format of this name; nothing where it has none.
std::optional<std::string> called(const EngineFacts& engine, std::string_view name) {
  std::string_view rest = engine.names;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const std::size_t equals = word.find('=');
    if (word.substr(0, equals) == name)
      return std::string(equals == word.npos ? word : word.substr(equals + 1));
  }
  return std::nullopt;
}

}  // namespace

bool stores(Engine engine, const Quantization& stored) {
  const EngineFacts& facts = kEngines[engine];
  if (facts.names.empty()) return true;
  if (stored.stores_exactly()) return facts.formats != FormatsOf::model || facts.evicts;
  if (!facts.turns && stored.k.turned + stored.v.turned > 0) return false;
  if (!facts.keys_apart) return called(facts, name_of_both(stored)).has_value();
  const auto has = [&](const StoredAs& as) {
    return as.format == NumberFormat::exact || called(facts, name_of(as.format));
  };
  return has(stored.k) && has(stored.v);
}

std::string told(Engine engine, const Recipe& recipe) {
  const EngineFacts& facts = kEngines[engine];
  std::vector<std::string> skipped;
  std::string name;
  Json of_layers = Json::object();
  std::set<std::string> names;
  const Quantization* stored = nullptr;
  for (std::size_t l = 0; l < recipe.layers.size(); ++l) {
    if (recipe.layers[l].stored.stores_exactly()) {
      skipped.push_back(fmt::format("{}", l));
      continue;
    }
    stored = &recipe.layers[l].stored;
    name = called(facts, name_of_both(*stored)).value_or("");
    names.insert(name);
    of_layers[fmt::format("model.layers.{}.self_attn", l)] = {{"quant_algo", name}};
  }
  if (engine == Engine::kvpress) return "with kvreplay.press(\"recipe.json\")(model): model.generate(ids)";
  if (stored == nullptr) return "";
  switch (engine) {
    case Engine::any:
    case Engine::kvpress:
      return "";
    case Engine::modelopt: {
      const Json quantization = {
          {"quant_algo", nullptr},
          {"kv_cache_quant_algo", names.size() + skipped.size() > 1 ? "MIXED_PRECISION" : name},
          {"kv_cache_quantized_layers", of_layers},
          {"kv_cache_schema_version", 1}};
      return "hf_quant_config.json: " + Json{{"quantization", quantization}}.dump();
    }
    case Engine::vllm:
      return fmt::format(
          "vllm serve MODEL --kv-cache-dtype {}{}", name,
          skipped.empty() ? "" : fmt::format(" --kv-cache-dtype-skip-layers {}", fmt::join(skipped, " ")));
    case Engine::sglang:
      return fmt::format("python3 -m sglang.launch_server --model-path MODEL --kv-cache-dtype {}", name);
    case Engine::trtllm:
      return fmt::format("LLM(model=..., kv_cache_config=KvCacheConfig(dtype=\"{}\"))", name);
    case Engine::llama_cpp: {
      const auto type = [](const StoredAs& as) {
        return as.format == NumberFormat::exact ? std::string_view("f16") : name_of(as.format);
      };
      return fmt::format("llama-server -m MODEL -fa on -ctk {} -ctv {}", type(stored->k), type(stored->v));
    }
  }
  return "";
}

}  // namespace kvreplay::recommend
