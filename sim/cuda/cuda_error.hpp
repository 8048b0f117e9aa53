#pragma once

#include "sim/cuda/runtime.hpp"

#include <cuda_runtime_api.h>

namespace kvreplay::cuda {

/// Throws what a call of the CUDA runtime came to, unless that is success. Whatever takes memory may find
/// none: an allocation, a stream, the first launch of a kernel.
inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not to be found by the next call
  const std::string line = std::string("CUDA: ") + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) throw OutOfDeviceMemory(line);
  throw DeviceError(line);
}

}  // namespace kvreplay::cuda
