#pragma once

#include "sim/cuda/runtime.hpp"

#include <cstddef>
#include <cstdint>

// What a device is and what it can do: kernels that do nothing but multiply or read, for cuda_floor.hpp.

namespace kvreplay::bench {

/// half: float16 factors, float32 sums, matrix units (mma.sync m16n8k16; m16n8k8 before 8.0). tf32: m16n8k8,
/// from 8.0 on. fma: float32 multiply-adds.
enum class Product { half, tf32, fma };

/// The product that is timed: C [kTileRows][kTileTokens] = A B^T over kTileDepth channels, one a block. A
/// chunk of the channels lies in shared memory, kChunkBytes of each row of A and B, and is read again for the
/// others: a whole float32 tile would fit on few devices.
inline constexpr int kTileRows = 128, kTileTokens = 256, kTileDepth = 128, kChunkBytes = 128;
inline constexpr double kTileFlops = 2.0 * kTileRows * kTileTokens * kTileDepth;
inline constexpr int kTileEntries = kTileRows * kTileTokens;
/// Times that a chunk is read for one product.
constexpr int chunks_of(Product product) {
  return kTileDepth * (product == Product::half ? 2 : 4) / kChunkBytes;
}

/// c [blocks][kTileRows][kTileTokens] = repeats products. a [kTileRows] and b [kTileTokens] rows of
/// kChunkBytes, 16-byte aligned, on the device: float16 for half, float32 otherwise (of TF32's precision for
/// tf32).
void tile_products(Product product, const void* a, const void* b, float* c, int repeats, unsigned blocks,
                   const cuda::Stream& stream);

/// The same instructions on registers alone; out: [blocks * kRateThreads], factors: 32 words of the type
/// above.
void register_products(Product product, const void* factors, float* out, int repeats, unsigned blocks,
                       const cuda::Stream& stream);
inline constexpr int kRateThreads = 256;
/// Flops of a block for one repeat.
double register_flops(Product product);

/// Reads n numbers, n a multiple of kReadStep; out: [blocks * kRateThreads] sums.
void read_memory(const float* in, std::ptrdiff_t n, float* out, unsigned blocks, const cuda::Stream& stream);
inline constexpr std::ptrdiff_t kReadStep = kRateThreads * 16;

/// What cuda::DeviceInfo leaves out, of the calling thread's device. Versions as CUDA has them: 13000
/// is 13.0.
struct DeviceFacts {
  std::size_t l2_bytes = 0;
  int driver_cuda = 0;   ///< the newest that the driver supports
  int runtime_cuda = 0;  ///< that this program was built with
};
DeviceFacts device_facts();

/// Makes host memory that is already there pinned while it lives. Throws DeviceError.
class Pinned {
 public:
  Pinned(const void* memory, std::size_t bytes);
  ~Pinned();  // NOLINT(performance-trivially-destructible): only where there is no device
  Pinned(Pinned&& other) noexcept : memory_(other.memory_) { other.memory_ = nullptr; }
  Pinned& operator=(Pinned&&) = delete;

 private:
  void* memory_;
};

}  // namespace kvreplay::bench
