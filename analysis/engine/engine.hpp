#pragma once

#include "analysis/options/option.hpp"
#include "data/dump.hpp"
#include "data/facts_table.hpp"
#include "sim/cache/quantize.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The KV cache formats of inference engines: one table, read from their source code. `evict --bits ENGINE`
// measures an engine's formats; `recommend --for ENGINE` accepts nothing else. Tests check the printed
// command lines and RECOMMEND.md against the table.

namespace kvreplay {

enum class Engine { any, kvpress, vllm, sglang, trtllm, modelopt, llama_cpp };

/// The formats that one model may have in an engine: one per layer, one for all layers, or one for all layers
/// except some in 16 bits.
enum class FormatsOf { layer, model, model_but_some };

/// A format of keys and values. Uniform formats ("4", "3") have groups of a whole head, along channels.
struct EngineFormat {
  NumberFormat k, v;
  std::string_view name;  ///< the engine's own name
  Index ends = 0;         ///< layers at either end, at most half of all, that the engine leaves in 16 bits
};

namespace engine_formats {
using enum NumberFormat;
inline constexpr EngineFormat kKvpress[] = {{exact, exact, "16"}};
inline constexpr EngineFormat kVllm[] = {
    {exact, exact, "auto"},
    {fp8, fp8, "fp8"},
    {fp8_per_token_head, fp8_per_token_head, "fp8_per_token_head"},
    {int8_per_token_head, int8_per_token_head, "int8_per_token_head"},
    {nvfp4, nvfp4, "nvfp4"},
    {fp8, int4, "turboquant_k8v4", 2},
    {tq4, int4, "turboquant_4bit_nc", 2},
    {tq3, int4, "turboquant_k3v4_nc", 2},
    {tq3, int3, "turboquant_3bit_nc", 2},
};
inline constexpr EngineFormat kSglang[] = {
    {exact, exact, "auto"}, {fp8, fp8, "fp8_e4m3"}, {mxfp8, mxfp8, "mxfp8"}, {nvfp4, nvfp4, "nvfp4"}};
inline constexpr EngineFormat kTrtllm[] = {
    {exact, exact, "auto"}, {fp8, fp8, "fp8"}, {nvfp4, nvfp4, "nvfp4"}};
inline constexpr EngineFormat kModelopt[] = {
    {exact, exact, "null"}, {fp8, fp8, "FP8"}, {nvfp4, nvfp4, "NVFP4"}, {fp8, nvfp4, "FP8_K_NVFP4_V"}};
inline constexpr EngineFormat kLlamaCpp[] = {{exact, exact, "f16"}, {q8_0, q8_0, "q8_0"},
                                             {q5_1, q5_1, "q5_1"},  {q5_0, q5_0, "q5_0"},
                                             {q4_1, q4_1, "q4_1"},  {q4_0, q4_0, "q4_0"}};
}  // namespace engine_formats

struct EngineFacts {
  Engine id;
  std::string_view name;
  std::string_view title;    ///< the engine's own spelling
  std::string_view meaning;  ///< one line
  bool evicts = false;       ///< evicts tokens, equally many in every head
  bool one_policy = false;   ///< one policy for all layers
  FormatsOf formats = FormatsOf::model;
  bool keys_apart = false;                ///< any format of keys goes with any format of values
  std::span<const EngineFormat> of = {};  ///< 16 bits first; empty: all formats of kvreplay
  Index turns = 0;                        ///< rotates quantized heads of a multiple of this size: keys
                                          ///< by the largest Hadamard matrix, values in blocks of this size
  std::string_view unturned = {};         ///< environment setting that switches the rotation off
  std::string_view windows = {};          ///< tokens that a layer with a sliding window holds
  std::string_view others = {};           ///< formats of the engine that kvreplay lacks
  std::string_view source = {};           ///< the version of the source code, and its date
};
inline constexpr auto kEngines = facts_table<EngineFacts>({
    {.id = Engine::any,
     .name = "any",
     .title = "kvreplay.press",
     .meaning =
         "A policy and a format a layer, a budget a head: kvreplay.press() runs it and saves no memory",
     .evicts = true,
     .formats = FormatsOf::layer,
     .keys_apart = true},
    {.id = Engine::kvpress,
     .name = "kvpress",
     .title = "kvpress",
     .meaning = "One policy, a budget a head, in 16 bits",
     .evicts = true,
     .one_policy = true,
     .of = engine_formats::kKvpress},
    {.id = Engine::vllm,
     .name = "vllm",
     .title = "vLLM",
     .meaning = "All tokens, in one format but for layers that are skipped",
     .formats = FormatsOf::model_but_some,
     .of = engine_formats::kVllm,
     .windows = "the window and the tokens of one step, in whole blocks",
     .others = "fp8_e5m2, int4_per_token_head, nvfp4_4over6, octave_*, ultraquant_4bit",
     .source = "0.33.0, 2026-11-02"},
    {.id = Engine::sglang,
     .name = "sglang",
     .title = "SGLang",
     .meaning = "All tokens, in one format",
     .of = engine_formats::kSglang,
     .windows = "0.8 times the tokens of a full layer (`--swa-full-tokens-ratio`)",
     .others = "fp8_e5m2, fp4_mx_block16",
     .source = "0.5.23, 2026-10-30"},
    {.id = Engine::trtllm,
     .name = "trtllm",
     .title = "TensorRT-LLM",
     .meaning = "All tokens, in one format",
     .of = engine_formats::kTrtllm,
     .windows = "not read",
     .source = "main at 0004396, 2026"},
    {.id = Engine::modelopt,
     .name = "modelopt",
     .title = "Model-Optimizer",
     .meaning = "All tokens, in a format a layer, as Model-Optimizer exports them",
     .formats = FormatsOf::layer,
     .of = engine_formats::kModelopt,
     .others = "INT8, NVFP4_AFFINE",
     .source = "main, 2026; release 0.47.0 has one format for all layers"},
    {.id = Engine::llama_cpp,
     .name = "llama.cpp",
     .title = "llama.cpp",
     .meaning = "All tokens, in one format for keys and one for values",
     .keys_apart = true,
     .of = engine_formats::kLlamaCpp,
     .turns = 64,
     .unturned = "LLAMA_ATTN_ROT_DISABLE=1",
     .windows = "the window and a batch, in multiples of 256 tokens (all with `--swa-full`)",
     .others = "f32, bf16, iq4_nl",
     .source = "b10359, 2026-08-11"},
});

/// Finds an engine by name, in any spelling: "vLLM", "llamacpp", "TensorRT-LLM".
std::optional<Engine> engine_named(std::string_view word);

/// All pairs of formats that an engine stores, 16 bits first. `name` is empty if the engine names keys and
/// values separately.
std::vector<EngineFormat> formats_of(Engine engine);
/// The storage of heads of these sizes in a format, for a layer that the engine does not leave in 16 bits.
Quantization stored_by(Engine engine, const EngineFormat& format, const DumpShape& shape);
/// The number of layers at either end that stay in 16 bits.
Index ends_of(const EngineFormat& format, Index layers);

/// "fp8 with 256 recent tokens in 16 bits": "vllm has no such window".
struct Mismatch {
  std::string what, why;
};
/// The reason why an engine cannot store the layers of a model exactly so; nothing if it can. `of_layers`:
/// one entry per layer.
std::optional<Mismatch> why_not_run(Engine engine, std::span<const Quantization> of_layers,
                                    const DumpShape& shape);
/// The engine's command-line options or configuration for a cache that it can store, in one line. Empty for
/// `any`, whose recipes run in kvreplay.press().
std::string engine_flags(Engine engine, std::span<const Quantization> of_layers, const DumpShape& shape);

template <>
struct OptionValue<Engine> {
  static Engine parse(const OptionFacts& option, const std::string& word);
  static std::string text(Engine engine) { return std::string(kEngines[engine].name); }
};

}  // namespace kvreplay
