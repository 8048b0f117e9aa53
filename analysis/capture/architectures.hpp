#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace kvreplay {

/// A tensor of llama.cpp's graph. A name occurs several times in a layer ("Qcur-0" of a product, a bias, a
/// rotation); the operation says which occurrence attention reads.
struct GraphTensor {
  std::string_view name;            ///< without the layer
  std::string_view operation;       ///< as ggml_op_name() has it
  std::string_view otherwise = {};  ///< of parts of one product that makes q, k and v
};
// Tensors of all architectures below: q and k behind the rotation, v, and the heads' outputs before W_O.
inline constexpr GraphTensor kQ{"Qcur", "ROPE"}, kK{"Kcur", "ROPE"}, kV{"Vcur", "RESHAPE", "VIEW"},
    kO{"kqv_out", "CONT"};

/// Architectures that are captured, by the name in their GGUF (Mistral's is llama).
inline constexpr std::string_view kArchitectures[] = {"llama",  "qwen2", "qwen3",  "gemma2",
                                                      "gemma3", "phi3",  "gpt-oss"};

constexpr bool is_captured(std::string_view architecture) {
  return std::find(std::begin(kArchitectures), std::end(kArchitectures), architecture) !=
         std::end(kArchitectures);
}

/// "llama, qwen2, qwen3, ..."
inline std::string architecture_names() {
  std::string names;
  for (const std::string_view each : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(each);
  return names;
}

}  // namespace kvreplay
