#pragma once

#include "analysis/eviction/recipe.hpp"
#include "analysis/options/option.hpp"
#include "data/facts_table.hpp"
#include "sim/cache/quantize.hpp"

#include <string>
#include <string_view>
#include <vector>

// What engines can run of a recipe, and how they are told.

namespace kvreplay::recommend {

enum class Engine { any, kvpress, vllm, sglang, trtllm, modelopt, llama_cpp };

/// In how many formats an engine stores the layers of one model.
enum class FormatsOf { layer, model, model_but_some };

struct EngineFacts {
  Engine id;
  std::string_view name;
  std::string_view meaning;  ///< one line
  bool evicts = false;       ///< tokens, of every head as many as is asked for
  bool one_policy = false;   ///< in all layers
  FormatsOf formats = FormatsOf::model;
  bool keys_apart = false;  ///< keys and values each have a format of their own
  bool turns = false;       ///< it turns what it stores, or may
  std::string_view names =
      {};  ///< of its formats, as kvreplay and as it calls them: "fp8=fp8_e4m3 nvfp4"; empty: all
};
inline constexpr auto kEngines = facts_table<EngineFacts>({
    {.id = Engine::any,
     .name = "any",
     .meaning = "A policy and a format a layer, a budget a head: kvreplay.press() runs it",
     .evicts = true,
     .formats = FormatsOf::layer,
     .keys_apart = true,
     .turns = true},
    {.id = Engine::kvpress,
     .name = "kvpress",
     .meaning = "One policy, a budget a head, in 16 bits",
     .evicts = true,
     .one_policy = true,
     .names = "16"},
    {.id = Engine::vllm,
     .name = "vllm",
     .meaning = "All tokens, in one format but for layers that are skipped",
     .formats = FormatsOf::model_but_some,
     .names =
         "fp8 fp8_per_token_head int8_per_token_head nvfp4 kfp8v4=turboquant_k8v4 tq4=turboquant_4bit_nc"},
    {.id = Engine::sglang,
     .name = "sglang",
     .meaning = "All tokens, in one format",
     .names = "fp8=fp8_e4m3 mxfp8 nvfp4"},
    {.id = Engine::trtllm, .name = "trtllm", .meaning = "All tokens, in one format", .names = "fp8 nvfp4"},
    {.id = Engine::modelopt,
     .name = "modelopt",
     .meaning = "All tokens, in a format a layer, as Model-Optimizer exports them",
     .formats = FormatsOf::layer,
     .names = "fp8=FP8 nvfp4=NVFP4 kfp8vnvfp4=FP8_K_NVFP4_V"},
    {.id = Engine::llama_cpp,
     .name = "llama.cpp",
     .meaning = "All tokens, in one format for keys and one for values",
     .keys_apart = true,
     .turns = true,
     .names = "q8_0 q5_1 q5_0 q4_1 q4_0"},
});

/// Whether it can store a cache so.
bool stores(Engine engine, const Quantization& stored);
/// How it is told of a recipe: options of its command line, or what its configuration has; one line. Empty of
/// `any`, whose recipes kvreplay.press() runs.
std::string told(Engine engine, const Recipe& recipe);

}  // namespace kvreplay::recommend

namespace kvreplay {
template <>
struct OptionValue<recommend::Engine> : NamedValue<recommend::kEngines, Listed::one_of> {};
}  // namespace kvreplay
