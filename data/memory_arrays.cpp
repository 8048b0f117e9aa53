#include "data/memory_arrays.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace kvreplay {
namespace {

/// Bytes of its own.
class OwnedSource final : public MemorySource {
 public:
  explicit OwnedSource(std::vector<std::byte> bytes) : MemorySource(bytes), bytes_(std::move(bytes)) {}

 private:
  std::vector<std::byte> bytes_;  // moved, they stay where they are
};

/// The elements in C order.
std::vector<std::byte> gathered(const MemoryArray& array, Index count) {
  const std::size_t size = size_of(array.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  std::byte* to = bytes.data();
  in_c_order(array.numbers, array.shape, array.strides, static_cast<Index>(size), [&](const std::byte* from) {
    std::memcpy(to, from, size);
    to += size;
  });
  return bytes;
}

std::vector<Index> c_strides(const std::vector<Index>& shape) {
  std::vector<Index> strides(shape.size());
  Index stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) strides[axis] = stride;
  return strides;
}

StoredTensor in_memory(const MemoryArray& array) {
  NpyArray stored;
  stored.where = name_of(array.tensor);
  stored.header.descr = kDtypes[array.dtype].descr;
  stored.header.dtype = array.dtype;
  stored.header.big_endian = std::endian::native == std::endian::big;
  stored.header.shape = array.shape;
  Index last = 0;
  bool backwards = false;
  for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (array.shape[axis] < 1)
      throw InputError(stored.where, "extents of at least 1", "shape " + shape_text(array.shape));
    stored.header.count *= array.shape[axis];
    last += (array.shape[axis] - 1) * array.strides[axis];
    backwards = backwards || (array.shape[axis] > 1 && array.strides[axis] < 0);
  }
  // Along an axis of 1 any stride will do; this one says that nothing lies between.
  std::vector<Index> strides = c_strides(array.shape);
  if (backwards) {
    stored.source = std::make_shared<OwnedSource>(gathered(array, stored.header.count));
  } else {
    const auto* bytes = static_cast<const std::byte*>(array.numbers);
    const std::size_t size = static_cast<std::size_t>(last + 1) * size_of(array.dtype);
    stored.source = std::make_shared<MemorySource>(std::span(bytes, size));
    for (std::size_t axis = 0; axis < strides.size(); ++axis)
      if (array.shape[axis] > 1) strides[axis] = array.strides[axis];
  }
  return name_axes({array.tensor, 0}, std::move(stored), array.dtype, strides);
}

}  // namespace

std::vector<StoredTensor> tensors_in_memory(const std::vector<MemoryArray>& arrays) {
  std::vector<StoredTensor> tensors;
  tensors.reserve(arrays.size());
  for (const MemoryArray& array : arrays) tensors.push_back(in_memory(array));
  return tensors;
}

void require_ascending(const std::vector<Index>& position, const DumpShape& shape) {
  if (position.empty()) return;
  if (std::ssize(position) != shape.T)
    throw InputError("positions", fmt::format("{} of them, one a key", shape.T),
                     std::to_string(position.size()));
  for (std::size_t p = 0; p < position.size(); ++p) {
    const Index before = p == 0 ? -1 : position[p - 1], row = static_cast<Index>(p);
    const bool adjacent = row <= shape.first_query() || position[p] == before + 1;
    if (position[p] <= before || !adjacent)
      throw InputError("positions",
                       adjacent ? "each above the one before, from 0 on" : "adjacent ones of the queries",
                       fmt::format("{} behind {}", position[p], before));
  }
}

}  // namespace kvreplay
