#pragma once

#include "sim/cuda/runtime.hpp"

#include <cuda_runtime_api.h>

// What runtime_cuda.cpp and memory_cuda.cpp have in common.

namespace kvreplay::cuda::detail {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw DeviceError(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// Returns when all is done that the calling thread put on streams and did not wait for. What failed is for
/// the next call to tell.
void finish_own_work() noexcept;

/// Bytes of a device's memory that are kept for later requests.
std::size_t kept_memory(int device);

}  // namespace kvreplay::cuda::detail
