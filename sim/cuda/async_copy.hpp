#pragma once

#include "sim/cuda/kernel.hpp"

#if !defined(__CUDACC__)
#include <cstring>
#endif

// Copies from device to shared memory that run beside the arithmetic (PTX ISA, cp.async, from capability 8.0
// on; at once before).

namespace kvreplay::cuda {

/// 16 bytes, both at multiples of 16; 0 where they are not `real`. Others see them after a thread has waited
/// for its own copies and the block has met.
KVREPLAY_DEVICE void copy_16_async(void* shared, const void* global, bool real) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
#else
  *static_cast<uint4*>(shared) = real ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
#else
  if (real)
    std::memcpy(shared, global, 16);
  else
    std::memset(shared, 0, 16);
#endif
}

/// Makes one batch of the copies since the last call.
KVREPLAY_DEVICE void end_copy_batch() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}

/// Waits until only the thread's last kLeft batches may still be on their way.
template <int kLeft>
KVREPLAY_DEVICE void wait_for_copies() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

}  // namespace kvreplay::cuda
