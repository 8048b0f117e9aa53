#pragma once

#include "sim/tokens/cuda/column_totals_cuda.hpp"

#include <cstdint>
#include <vector>

// Inputs of the GPU benchmark, as a dump would hold them.

namespace kvreplay::bench {

using cuda::ColumnRun;
using cuda::DeviceGroup;

/// Elements of Q, K and V in host memory.
enum class Input { f16, f32 };

/// A head group's numbers of one type. Refers to the group until it is gone.
class HostNumbers {
 public:
  HostNumbers(const HeadGroup<float>& group, Input input);
  HostNumbers(HostNumbers&&) = default;
  const cuda::StoredNumbers& stored() const { return stored_; }
  /// The memory that is copied to a device: of each matrix, where it starts and how many bytes it has.
  const std::vector<std::pair<const void*, std::size_t>>& memory() const { return memory_; }

 private:
  std::vector<std::vector<std::uint16_t>> halves_;
  cuda::StoredNumbers stored_;
  std::vector<std::pair<const void*, std::size_t>> memory_;
};

}  // namespace kvreplay::bench
