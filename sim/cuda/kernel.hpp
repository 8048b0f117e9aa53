#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/host_device.hpp"

// The language of kernels: CUDA, or its emulation where the file is compiled as C++. A warp has 32 lanes;
// whatever a warp does together, all its lanes call.

#if defined(__CUDACC__)
#include "sim/cuda/cuda_error.hpp"

#include <cuda_runtime.h>
#define KVREPLAY_KERNEL __global__
#define KVREPLAY_DEVICE __device__ __forceinline__
#define KVREPLAY_UNROLL _Pragma("unroll")
#define KVREPLAY_PRAGMA(text) _Pragma(#text)
#define KVREPLAY_UNROLL_BY(n) KVREPLAY_PRAGMA(unroll(n))
#define KVREPLAY_SELDOM __device__ __noinline__
#else
#include "sim/cuda/emulation.hpp"

#include <atomic>
#include <bit>
#include <cmath>
#define KVREPLAY_KERNEL
#define KVREPLAY_DEVICE inline
#define KVREPLAY_UNROLL
#define KVREPLAY_UNROLL_BY(n)
#define KVREPLAY_SELDOM inline
#ifndef KVREPLAY_CALL  // of a thread; tests/ptx has its own, of what nvcc made of the kernel
#define KVREPLAY_CALL(kernel, ...) kernel(__VA_ARGS__)
#endif
#endif

namespace kvreplay::cuda {

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

/// Blocks of `size` that n things fill.
constexpr unsigned blocks_of(std::ptrdiff_t n, std::ptrdiff_t size) {
  return static_cast<unsigned>((n + size - 1) / size);
}

#if defined(__CUDACC__)

KVREPLAY_DEVICE int thread_id() { return static_cast<int>(threadIdx.x); }
KVREPLAY_DEVICE Grid block_id() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
KVREPLAY_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
KVREPLAY_DEVICE void sync_block() { __syncthreads(); }
template <class T>
KVREPLAY_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffU, value, mask);
}
template <class T>
KVREPLAY_DEVICE T shuffle_from(T value, int lane) {
  return __shfl_sync(0xffffffffU, value, lane);
}
/// True if it holds for any lane.
KVREPLAY_DEVICE bool any_lane(bool holds) { return __any_sync(0xffffffffU, holds) != 0; }
/// Makes *at the larger of itself and x, both at least 0, whoever else does.
KVREPLAY_DEVICE void raise(float* at, float x) { atomicMax(reinterpret_cast<int*>(at), __float_as_int(x)); }
/// Makes *flag 1, whoever else does.
KVREPLAY_DEVICE void set_flag(int* flag) { atomicOr(flag, 1); }
/// Within 2 ulp of the argument's own rounding; 0 at -inf and below 2^-126.
KVREPLAY_DEVICE float fast_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504088896341F));
  return power;
}
KVREPLAY_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
KVREPLAY_DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
KVREPLAY_DEVICE unsigned as_bits(float x) { return __float_as_uint(x); }

/// Starts a kernel on a stream; throws DeviceError where the device refuses.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid grid, int threads, std::size_t shared_bytes,
            const Stream& stream, const Arguments&... arguments) {
  constexpr std::size_t kOrdinary = 48 * 1024;
  if (shared_bytes > kOrdinary)  // always to the same size: another thread may be about to launch it too
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_memory_limit())));
  kernel<<<dim3(grid.x, grid.y, grid.z), static_cast<unsigned>(threads), shared_bytes,
           static_cast<cudaStream_t>(stream.handle())>>>(arguments...);
  check(cudaGetLastError());
}

#else

inline int thread_id() { return static_cast<int>(emulation::this_thread().index); }
inline Grid block_id() {
  const emulation::Size3& block = emulation::this_thread().block;
  return {block.x, block.y, block.z};
}
inline unsigned char* shared_memory() { return emulation::this_thread().shared; }
inline void sync_block() { emulation::sync_block(); }
template <class T>
T shuffle_xor(T value, int mask) {
  return emulation::shuffle(value, (emulation::this_thread().index % 32) ^ static_cast<unsigned>(mask));
}
template <class T>
T shuffle_from(T value, int lane) {
  return emulation::shuffle(value, static_cast<unsigned>(lane));
}
inline bool any_lane(bool holds) {
  int any = holds ? 1 : 0;
  for (int mask = 1; mask < 32; mask *= 2) any |= shuffle_xor(any, mask);
  return any != 0;
}
inline void raise(float* at, float x) {
  const std::atomic_ref<float> shared(*at);
  float now = shared.load(std::memory_order_relaxed);
  while (now < x && !shared.compare_exchange_weak(now, x, std::memory_order_relaxed)) continue;
}
inline void set_flag(int* flag) { std::atomic_ref<int>(*flag).store(1, std::memory_order_relaxed); }
inline float fast_exp(float x) { return std::exp2(x * 1.44269504088896341F); }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline float as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned as_bits(float x) { return std::bit_cast<unsigned>(x); }

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid grid, int threads, std::size_t shared_bytes, const Stream&,
            const Arguments&... arguments) {
  emulation::run({grid.x, grid.y, grid.z}, static_cast<unsigned>(threads), shared_bytes,
                 [&] { KVREPLAY_CALL(kernel, arguments...); });
}

#endif

KVREPLAY_DEVICE int lane_id() { return thread_id() % 32; }
KVREPLAY_DEVICE int warp_id() { return thread_id() / 32; }
template <class T>
KVREPLAY_HOST_DEVICE inline T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
KVREPLAY_HOST_DEVICE inline T larger(T a, T b) {
  return a < b ? b : a;
}

}  // namespace kvreplay::cuda
