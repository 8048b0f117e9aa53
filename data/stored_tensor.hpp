#pragma once

#include "data/dump.hpp"
#include "data/manifest.hpp"
#include "data/npy_array.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// Tensor and layer that the name of a file or member states.
struct ArrayName {
  Tensor tensor = Tensor::q;
  Index layer = -1;  ///< -1: all layers, stacked
};

/// Understands "layer_00/q.npy", "q_00.npy", "layer_0_q.npy", "layers.0.q.npy" and "q.npy" with any number of
/// digits; anything else holds none of a dump's tensors.
std::optional<ArrayName> parse_array_name(std::string_view name);

/// "layer_00" -> 0
std::optional<Index> layer_of_folder(std::string_view name);

struct FoundArray {
  ArrayName name;
  NpyArray array;
};

/// Finds and opens the arrays of a dump folder, or of a single `.npz`, in the order of their names. A member
/// m of layer_03.npz counts as layer_03/m, a member of any other archive as a file of the folder that holds
/// it. Adds to `passed_over` what looks like an array and has no name of a dump's. Throws InputError where
/// the path is neither, is unreadable, or holds an array that cannot be used.
std::vector<FoundArray> find_arrays(const std::filesystem::path& dump, std::vector<std::string>& passed_over);

/// An array with its axes named: [layers, heads, samples, rows, cols], whatever its order in memory and
/// without a batch of 1.
struct StoredTensor {
  ArrayName name;
  NpyArray array;
  Dtype dtype = Dtype::f32;
  Index layers = 1, heads = 0, samples = 1, rows = 0, cols = 0;
  /// In elements.
  Index layer_stride = 0, head_stride = 0, sample_stride = 0, row_stride = 0, col_stride = 0;

  /// One head's matrix, of one sample; `layer` is the dump's.
  MatrixView head(Index layer, Index head, Index sample = 0) const {
    const Index begin =
        (name.layer < 0 ? layer * layer_stride : 0) + head * head_stride + sample * sample_stride;
    return {begin, rows, cols, row_stride, col_stride};
  }
};

/// Names an array's axes and settles its dtype. Throws InputError for a wrong number of axes, a batch of more
/// than 1, and a dtype that contradicts the manifest.
StoredTensor name_axes(FoundArray found, const std::optional<Dtype>& manifest_dtype);

/// Names the axes of an array whose elements lie `strides` apart along each axis of its header's shape, at
/// least 0.
StoredTensor name_axes(ArrayName name, NpyArray array, Dtype dtype, const std::vector<Index>& strides);

/// Every layer's tensors, each once.
struct StoredLayers {
  std::vector<StoredTensor> tensors;
  /// [tensor][layer]: an index into `tensors`; empty for a tensor the dump does not have.
  std::vector<std::size_t> by_layer[kTensors.size()];
  DumpShape shape;  ///< all but l

  const StoredTensor& at(Tensor tensor, Index layer) const {
    return tensors[by_layer[static_cast<int>(tensor)][layer]];
  }
};

/// Sorts the tensors by layer and checks them against each other. Throws InputError for a tensor that is
/// missing, twice there, or of another shape than the others imply. `dump` names the dump in messages.
StoredLayers arrange(std::vector<StoredTensor> tensors, const std::string& dump);

/// Arrays in memory as a dump's tensors of one layer, where they lie; those with a step backwards are copied.
/// Throws InputError for an empty extent and a wrong number of axes.
std::vector<StoredTensor> tensors_in_memory(const std::vector<MemoryArray>& arrays);

/// Throws InputError unless there are T positions or none, each above the one before, the last `T_q`
/// adjacent.
void require_ascending(const std::vector<Index>& position, const DumpShape& shape);

}  // namespace kvreplay
