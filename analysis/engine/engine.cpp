#include "analysis/engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvreplay {
namespace {

/// "fp8", "kfp8v4".
std::string name_of_both(NumberFormat k, NumberFormat v) {
  return k == v ? std::string(name_of(k)) : fmt::format("k{}v{}", name_of(k), name_of(v));
}

/// The engine's name for the format of keys or of values; empty if the engine has no such format.
std::string_view side_name(const EngineFacts& engine, NumberFormat format) {
  const auto found = std::ranges::find(engine.of, format, &EngineFormat::k);
  return found == engine.of.end() ? std::string_view() : found->name;
}

std::optional<EngineFormat> format_of(Engine engine, const Quantization& stored) {
  for (const EngineFormat& format : formats_of(engine))
    if (format.k == stored.k.format && format.v == stored.v.format) return format;
  return std::nullopt;
}

/// True if neither keys nor values are rotated, though the engine would rotate them.
bool is_unturned(const Quantization& stored, const Quantization& expected) {
  return stored.k.turned + stored.v.turned == 0 && expected.k.turned + expected.v.turned > 0;
}

/// Describes how a quantized layer differs from an entry of the table; nothing if it matches.
std::optional<Mismatch> difference(const EngineFacts& engine, const Quantization& stored,
                                   const Quantization& expected, const DumpShape& shape) {
  if (stored.residual > 0)
    return Mismatch{fmt::format("with {} recent tokens in 16 bits", stored.residual),
                    fmt::format("{} has no such window", engine.name)};
  const bool as_turned = !engine.unturned.empty() && is_unturned(stored, expected);
  for (const auto& [side, as, wanted, n] : {std::tuple("keys", stored.k, expected.k, shape.d),
                                            std::tuple("values", stored.v, expected.v, shape.d_v)}) {
    if (as.per_channel)
      return Mismatch{"with groups of keys along tokens",
                      fmt::format("those of {} lie along channels", engine.name)};
    if (kNumberFormats[as.format].uniform && stored.group < n)
      return Mismatch{fmt::format("with groups of {}", stored.group),
                      fmt::format("those of {} are a head's {} numbers", engine.name, n)};
    if (as.centered)
      return Mismatch{fmt::format("with {} centered", side), fmt::format("{} centers none", engine.name)};
    if (as.turned == wanted.turned || as_turned) continue;
    return Mismatch{as.turned == 0 ? fmt::format("with {} not rotated", side)
                                   : fmt::format("with {} rotated in blocks of {}", side, as.turned),
                    wanted.turned == 0 ? fmt::format("{} rotates none", engine.name)
                                       : fmt::format("{} rotates blocks of {}", engine.name, wanted.turned)};
  }
  return std::nullopt;
}

/// The quantized layers, and the 16-bit layers that the engine does not skip by default.
struct Layers {
  std::optional<EngineFormat> format;  ///< of the first quantized layer
  const Quantization* stored = nullptr;
  std::vector<Index> skipped;
};

Layers layers_of(Engine engine, std::span<const Quantization> of_layers) {
  Layers found;
  const auto first = std::ranges::find_if_not(of_layers, &Quantization::stores_exactly);
  if (first == of_layers.end()) return found;
  found.stored = &*first;
  found.format = format_of(engine, *first);
  const Index layers = std::ssize(of_layers), ends = found.format ? ends_of(*found.format, layers) : 0;
  for (Index layer = ends; layer < layers - ends; ++layer)
    if (of_layers[static_cast<std::size_t>(layer)].stores_exactly()) found.skipped.push_back(layer);
  return found;
}

}  // namespace

std::optional<Engine> engine_named(std::string_view word) {
  for (const EngineFacts& facts : kEngines)
    if (same_name(word, facts.name) || same_name(word, facts.title)) return facts.id;
  return std::nullopt;
}

std::vector<EngineFormat> formats_of(Engine engine) {
  const EngineFacts& facts = kEngines[engine];
  if (!facts.keys_apart) return {facts.of.begin(), facts.of.end()};
  std::vector<EngineFormat> pairs;
  for (const EngineFormat& keys : facts.of)
    for (const EngineFormat& values : facts.of) pairs.push_back({keys.k, values.v, {}});
  return pairs;
}

Quantization stored_by(Engine engine, const EngineFormat& format, const DumpShape& shape) {
  const Index turns = kEngines[engine].turns;
  const auto side = [&](NumberFormat of, Index n, Index block) {
    const bool turned = turns > 0 && of != NumberFormat::exact && n % turns == 0;
    return StoredAs{of, false, turned ? block : 0};
  };
  return {side(format.k, shape.d, turning_block(shape.d)), side(format.v, shape.d_v, turns),
          std::max(shape.d, shape.d_v), 0};
}

Index ends_of(const EngineFormat& format, Index layers) { return std::min(format.ends, layers / 2); }

std::optional<Mismatch> why_not_run(Engine engine, std::span<const Quantization> of_layers,
                                    const DumpShape& shape) {
  const EngineFacts& facts = kEngines[engine];
  if (facts.of.empty()) return std::nullopt;
  const std::string one_format = fmt::format("{} has one format for all layers", facts.name);
  const Quantization* before = nullptr;
  for (const Quantization& stored : of_layers) {
    if (stored.stores_exactly()) continue;
    const std::string name = name_of_both(stored.k.format, stored.v.format);
    const auto format = format_of(engine, stored);
    if (!format) return Mismatch{name, fmt::format("{} has no such format", facts.name)};
    if (auto found = difference(facts, stored, stored_by(engine, *format, shape), shape))
      return Mismatch{fmt::format("{} {}", name, found->what), found->why};
    if (before != nullptr && (before->k != stored.k || before->v != stored.v) &&
        facts.formats != FormatsOf::layer)
      return Mismatch{fmt::format("{} beside {}", name, name_of_both(before->k.format, before->v.format)),
                      one_format};
    before = &stored;
  }
  const auto [format, stored, skipped] = layers_of(engine, of_layers);
  if (!format) return std::nullopt;
  const std::string name = name_of_both(format->k, format->v);
  if (!skipped.empty() && facts.formats == FormatsOf::model)
    return Mismatch{name + " but for layers in 16 bits", one_format};
  const Index layers = std::ssize(of_layers), ends = ends_of(*format, layers);
  for (Index layer = 0; layer < ends; ++layer)
    for (const Index end : {layer, layers - 1 - layer})
      if (!of_layers[static_cast<std::size_t>(end)].stores_exactly())
        return Mismatch{fmt::format("{} in layer {}", name, end),
                        fmt::format("{} leaves the first {} and last {} in 16 bits", facts.name, ends, ends)};
  return std::nullopt;
}

std::string engine_flags(Engine engine, std::span<const Quantization> of_layers, const DumpShape& shape) {
  const EngineFacts& facts = kEngines[engine];
  const auto [format, stored, skipped] = layers_of(engine, of_layers);
  const std::string_view name = format ? format->name : facts.of.empty() ? "" : facts.of.front().name;
  switch (engine) {
    case Engine::any:
      return "";
    case Engine::kvpress:
      return "with kvreplay.press(\"recipe.json\")(model): model.generate(ids)";
    case Engine::modelopt: {
      Json layers = Json::object();
      std::optional<std::string> all;
      for (std::size_t l = 0; l < of_layers.size(); ++l) {
        const auto of_layer = format_of(engine, of_layers[l]);
        const std::string algo(of_layer && !of_layers[l].stores_exactly() ? of_layer->name : "");
        all = l == 0 || *all == algo ? algo : "MIXED_PRECISION";
        if (!algo.empty()) layers[fmt::format("model.layers.{}.self_attn", l)] = {{"quant_algo", algo}};
      }
      const Json quantization = {{"quant_algo", nullptr},
                                 {"kv_cache_quant_algo", all->empty() ? Json() : Json(*all)},
                                 {"kv_cache_quantized_layers", layers},
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
      const NumberFormat k = format ? format->k : NumberFormat::exact,
                         v = format ? format->v : NumberFormat::exact;
      const bool unturned = format && is_unturned(*stored, stored_by(engine, *format, shape));
      // Without this build option the CUDA kernels support pairs of one type only, of f16, q8_0 and q4_0.
      const auto is_built = [](NumberFormat of) {
        return of == NumberFormat::exact || of == NumberFormat::q8_0 || of == NumberFormat::q4_0;
      };
      return fmt::format(
          "{}llama-server -m MODEL -fa on -ctk {} -ctv {}{}",
          unturned ? fmt::format("{} ", facts.unturned) : "", side_name(facts, k), side_name(facts, v),
          k == v && is_built(k) ? "" : "  # on CUDA, a build with -DGGML_CUDA_FA_ALL_QUANTS=ON");
    }
  }
  return "";
}

Engine OptionValue<Engine>::parse(const OptionFacts& option, const std::string& word) {
  if (const auto engine = engine_named(word)) return *engine;
  throw OptionError(option, names_text(kEngines.names(), Listed::one_of), fmt::format("'{}'", word));
}

}  // namespace kvreplay
