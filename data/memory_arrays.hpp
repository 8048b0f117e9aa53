#pragma once

#include "data/dump.hpp"
#include "data/stored_tensor.hpp"

#include <cstddef>
#include <vector>

namespace kvreplay {

/// Arrays in memory as a dump's tensors of one layer, where they lie; those with a step backwards are copied.
/// Throws InputError for an empty extent and a wrong number of axes.
std::vector<StoredTensor> tensors_in_memory(const std::vector<MemoryArray>& arrays);

/// visit(const std::byte*) for every element of an array in C order; strides are in elements, of `size`
/// bytes.
template <class Visit>
void in_c_order(const void* numbers, const std::vector<Index>& shape, const std::vector<Index>& strides,
                Index size, const Visit& visit) {
  std::vector<Index> at(shape.size(), 0);
  Index count = 1;
  for (const Index extent : shape) count *= extent;
  const auto* from = static_cast<const std::byte*>(numbers);
  for (Index n = 0; n < count; ++n) {
    visit(from);
    for (std::size_t axis = at.size(); axis-- > 0;) {
      const Index step = strides[axis] * size;
      from += step;
      if (++at[axis] < shape[axis]) break;
      from -= step * shape[axis];
      at[axis] = 0;
    }
  }
}

/// Throws InputError unless there are T positions or none, each above the one before, the last `T_q`
/// adjacent.
void require_ascending(const std::vector<Index>& position, const DumpShape& shape);

}  // namespace kvreplay
