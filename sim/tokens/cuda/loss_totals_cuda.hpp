#pragma once

#include "sim/tokens/cuda/column_totals_cuda.hpp"
#include "sim/tokens/loss_totals.hpp"

#include <vector>

namespace kvreplay::cuda {

/// loss_totals() on the calling thread's device, where `attended` has the group and `keys` its keys as they
/// lie; q comes from `numbers`. Throws InputError where a number overflows float32, OutOfDeviceMemory and
/// DeviceError.
std::vector<LossTotals> loss_totals_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                                       const DeviceGroup& attended, const DeviceRows& keys,
                                       const RowGradients<float>& gradients, RowRange rows,
                                       const Stream& stream);

}  // namespace kvreplay::cuda
