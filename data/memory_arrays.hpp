#pragma once

#include "data/dump.hpp"
#include "data/stored_tensor.hpp"

#include <vector>

namespace kvreplay {

/// Arrays in memory as a dump's tensors of one layer, where they lie; those with a step backwards are copied.
/// Throws InputError for an empty extent and a wrong number of axes.
std::vector<StoredTensor> tensors_in_memory(const std::vector<MemoryArray>& arrays);

/// Throws InputError unless there are T positions or none, each above the one before, the last `T_q`
/// adjacent.
void require_ascending(const std::vector<Index>& position, const DumpShape& shape);

}  // namespace kvreplay
