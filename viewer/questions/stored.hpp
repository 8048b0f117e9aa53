#pragma once

#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "viewer/model/layer_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

// Common parts of reading one head or layer from a result folder.

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

/// The rows that one KV head has in an array [n_kv or n_q, row].
class StoredRows {
 public:
  StoredRows(const ResultReader& results, const std::filesystem::path& name, const std::vector<Index>& row,
             Index kv_head) {
    const DumpShape& shape = results.shape();
    const auto with = [&](Index heads) {
      std::vector<Index> all = {heads};
      all.insert(all.end(), row.begin(), row.end());
      return all;
    };
    array_ = stored_array(results, name, {with(shape.n_kv), with(shape.n_q)});
    parts_ = static_cast<std::size_t>(array_.shape[0] / shape.n_kv);
    for (const Index size : row) row_size_ *= static_cast<std::size_t>(size);
    first_ = static_cast<std::size_t>(kv_head) * parts_;
  }
  std::size_t parts() const { return parts_; }
  const double* part(std::size_t p) const { return array_.values.data() + (first_ + p) * row_size_; }

 private:
  ResultReader::Array array_;
  std::size_t parts_ = 1, row_size_ = 1, first_ = 0;
};

/// Model's number of a layer of the results' dump.
inline ModelLayer called(const ResultReader& results, Index layer) {
  return LayerNumbers(results.model_layers()).number(layer);
}

/// Reason why there are no results on a layer, as one clause; nothing if there may be some.
inline std::optional<std::string> why_no_layer(const ResultReader& results, Index layer) {
  const auto& layers = results.layers();
  if (std::find(layers.begin(), layers.end(), layer) != layers.end()) return std::nullopt;
  return fmt::format("the run did not compute layer {}", called(results, layer));
}

/// Throws InputError where something is `missing`, or there is no such KV head.
inline void check_stored(const ResultReader& results, const std::optional<std::string>& missing,
                         Index kv_head) {
  if (missing) throw InputError(fmt::format("{}: {}", results.folder().string(), *missing));
  if (kv_head < 0 || kv_head >= results.shape().n_kv)
    throw InputError("KV head", fmt::format("0 to {}", results.shape().n_kv - 1), std::to_string(kv_head));
}

}  // namespace kvreplay::viewer
