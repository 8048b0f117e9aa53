#pragma once

#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

// What reading of one head or layer from a result folder has in common.

namespace kvreplay::viewer {

/// Throws InputError where the array has none of these shapes.
inline ResultReader::Array stored_array(const ResultReader& results, const std::filesystem::path& name,
                                        std::initializer_list<std::vector<Index>> shapes) {
  ResultReader::Array array = results.array(name);
  if (std::find(shapes.begin(), shapes.end(), array.shape) != shapes.end()) return array;
  std::string expected;
  for (const std::vector<Index>& shape : shapes)
    expected += (expected.empty() ? "shape " : " or ") + shape_text(shape);
  throw InputError((results.folder() / name).string(), expected, "shape " + shape_text(array.shape));
}

/// Why there is nothing of a layer, as one clause; nothing where there may be.
inline std::optional<std::string> why_no_layer(const ResultReader& results, Index layer) {
  const auto& layers = results.layers();
  if (std::find(layers.begin(), layers.end(), layer) != layers.end()) return std::nullopt;
  return fmt::format("the run did not compute layer {}", layer);
}

/// Throws InputError where something is `missing`, or there is no such KV head.
inline void check_stored(const ResultReader& results, const std::optional<std::string>& missing,
                         Index kv_head) {
  if (missing) throw InputError(fmt::format("{}: {}", results.folder().string(), *missing));
  if (kv_head < 0 || kv_head >= results.shape().n_kv)
    throw InputError("KV head", fmt::format("0 to {}", results.shape().n_kv - 1), std::to_string(kv_head));
}

}  // namespace kvreplay::viewer
