#pragma once

#include "data/dump.hpp"
#include "data/npy_array.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// What a file's or member's name says it holds.
struct ArrayName {
  Tensor tensor = Tensor::q;
  Index layer = -1;  ///< -1: all layers, stacked
};

/// Understands "layer_00/q.npy", "q_00.npy", "layer_0_q.npy", "layers.0.q.npy" and "q.npy" with any number of
/// digits; anything else holds none of a dump's tensors.
std::optional<ArrayName> parse_array_name(std::string_view name);

struct FoundArray {
  ArrayName name;
  NpyArray array;
};

/// Finds and opens the arrays of a dump folder, or of a single `.npz`, in the order of their names. A member
/// m of layer_03.npz counts as layer_03/m, a member of any other archive as a file of the folder that holds
/// it. Adds to `notes` what looks like an array and has no name of a dump's. Throws InputError where the path
/// is neither, is unreadable, or holds an array that cannot be used.
std::vector<FoundArray> find_arrays(const std::filesystem::path& dump, std::vector<std::string>& notes);

}  // namespace kvreplay
