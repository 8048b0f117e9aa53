#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace kvreplay {

/// A tensor of llama.cpp's graph. A name occurs several times in a layer ("Qcur-0" of a product, a bias, a
/// rotation); the operation says which occurrence attention reads.
struct GraphTensor {
  std::string_view name;       ///< without the layer
  std::string_view operation;  ///< as ggml_op_name() has it
};

/// Where an architecture, by its GGUF's name, has q and k behind the rotation, v, and the heads' outputs
/// before W_O.
struct Architecture {
  std::string_view name;
  GraphTensor q, k, v, o;
};
inline constexpr Architecture kArchitectures[] = {
    {"llama", {"Qcur", "ROPE"}, {"Kcur", "ROPE"}, {"Vcur", "RESHAPE"}, {"kqv_out", "CONT"}},
    {"qwen2", {"Qcur", "ROPE"}, {"Kcur", "ROPE"}, {"Vcur", "RESHAPE"}, {"kqv_out", "CONT"}},
    {"gemma3", {"Qcur", "ROPE"}, {"Kcur", "ROPE"}, {"Vcur", "RESHAPE"}, {"kqv_out", "CONT"}},
};

/// Null where the table has none of that name.
constexpr const Architecture* architecture_named(std::string_view name) {
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& each) { return each.name == name; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

/// "llama, qwen2, gemma3"
inline std::string architecture_names() {
  std::string names;
  for (const Architecture& each : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

}  // namespace kvreplay
