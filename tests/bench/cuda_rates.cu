#include "sim/cuda/kernel.hpp"
#include "tests/bench/cuda_fragments.hpp"
#include "tests/bench/cuda_rates.hpp"

namespace kvreplay::bench {
namespace {

using cuda::block_id, cuda::Grid, cuda::lane_id, cuda::shared_memory, cuda::sync_block, cuda::thread_id,
    cuda::warp_id;

/// 16 bytes, moved at once.
struct alignas(16) Four {
  float at[4];
};

/// Keeps what is read from shared memory from being read once for all passes.
KVREPLAY_DEVICE void forget_memory() {
#if defined(__CUDACC__)
  asm volatile("" ::: "memory");
#endif
}

/// passes: times that the chunk is gone through.
template <class Unit>
KVREPLAY_KERNEL void matrix_tile_kernel(const Four* a, const Four* b, float* c, int passes) {
  unsigned char* shared = shared_memory();
  constexpr int kFours = kChunkBytes / 16;
  for (int at = thread_id(); at < (kTileRows + kTileTokens) * kFours; at += kRateThreads) {
    const int row = at / kFours;
    *reinterpret_cast<Four*>(shared + row * kStrideBytes + at % kFours * 16) =
        row < kTileRows ? a[at] : b[at - kTileRows * kFours];
  }
  sync_block();

  const int first_row = warp_id() % (kTileRows / kWarpSide) * kWarpSide,
            first_token = warp_id() / (kTileRows / kWarpSide) * kWarpSide;
  const unsigned char* own_a = shared + first_row * kStrideBytes;
  const unsigned char* own_b = shared + (kTileRows + first_token) * kStrideBytes;
  float sums[kRowBlocks][kTokenBlocks][4] = {};
  Fragments two[2];
  load(own_a, own_b, 0, two[0]);
  for (int pass = 0; pass < passes; ++pass) {
    KVREPLAY_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      load(own_a, own_b, (step + 1) % kSteps * kStepBytes, two[(step + 1) % 2]);
      KVREPLAY_UNROLL
      for (int i = 0; i < kRowBlocks; ++i) {
        KVREPLAY_UNROLL
        for (int j = 0; j < kTokenBlocks; ++j)
          Unit::multiply_add(sums[i][j], two[step % 2].a[i], two[step % 2].b[j]);
      }
    }
  }
  static_assert(kSteps % 2 == 0, "a pass ends with its first fragments loaded again into two[0]");

  c += static_cast<std::ptrdiff_t>(block_id().x) * kTileEntries;
  KVREPLAY_UNROLL
  for (int i = 0; i < kRowBlocks; ++i) {
    KVREPLAY_UNROLL
    for (int j = 0; j < kTokenBlocks; ++j) {
      KVREPLAY_UNROLL
      for (int n = 0; n < 4; ++n)
        c[(first_row + 16 * i + lane_id() / 4 + 8 * (n / 2)) * kTileTokens + first_token + 8 * j +
          lane_id() % 4 * 2 + n % 2] = sums[i][j][n];
    }
  }
}

// Plain float32: each thread 8 rows x 16 tokens, the chunk channel by channel.
constexpr int kFmaDepth = kChunkBytes / 4, kRowStride = kTileRows + 4, kTokenStride = kTileTokens + 4;
constexpr std::size_t kFmaShared = sizeof(float) * kFmaDepth * (kRowStride + kTokenStride);

KVREPLAY_KERNEL void fma_tile_kernel(const Four* a, const Four* b, float* c, int passes) {
  auto* rows = reinterpret_cast<float*>(shared_memory());
  float* tokens = rows + kFmaDepth * kRowStride;
  for (int at = thread_id(); at < (kTileRows + kTileTokens) * kFmaDepth / 4; at += kRateThreads) {
    const int row = at / (kFmaDepth / 4), k = at % (kFmaDepth / 4) * 4;
    const bool in_a = row < kTileRows;
    const Four from = in_a ? a[at] : b[at - kTileRows * kFmaDepth / 4];
    for (int i = 0; i < 4; ++i)
      (in_a ? rows[(k + i) * kRowStride + row] : tokens[(k + i) * kTokenStride + row - kTileRows]) =
          from.at[i];
  }
  sync_block();

  const int row = warp_id() % 2 * 64 + lane_id() % 8 * 4, token = warp_id() / 2 * 64 + lane_id() / 8 * 4;
  float sums[8][16] = {};
  for (int pass = 0; pass < passes; ++pass) {
    forget_memory();
#if defined(__CUDACC__)
#pragma unroll 4
#endif
    for (int k = 0; k < kFmaDepth; ++k) {
      Four left[2], right[4];
      KVREPLAY_UNROLL
      for (int i = 0; i < 2; ++i)
        left[i] = *reinterpret_cast<const Four*>(rows + k * kRowStride + row + 32 * i);
      KVREPLAY_UNROLL
      for (int j = 0; j < 4; ++j)
        right[j] = *reinterpret_cast<const Four*>(tokens + k * kTokenStride + token + 16 * j);
      KVREPLAY_UNROLL
      for (int i = 0; i < 8; ++i) {
        KVREPLAY_UNROLL
        for (int j = 0; j < 16; ++j)
          sums[i][j] = cuda::fused(left[i / 4].at[i % 4], right[j / 4].at[j % 4], sums[i][j]);
      }
    }
  }
  c += static_cast<std::ptrdiff_t>(block_id().x) * kTileEntries;
  KVREPLAY_UNROLL
  for (int i = 0; i < 8; ++i) {
    KVREPLAY_UNROLL
    for (int j = 0; j < 16; ++j)
      c[(row + i / 4 * 32 + i % 4) * kTileTokens + token + j / 4 * 16 + j % 4] = sums[i][j];
  }
}

constexpr int kChains = 8;  // products that do not wait for each other
template <class Unit>
KVREPLAY_KERNEL void matrix_register_kernel(const Word* factors, float* out, int repeats) {
  Word a[4], b[2];
  KVREPLAY_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = factors[(lane_id() + i) % 32];
  KVREPLAY_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = factors[(lane_id() + 5 + i) % 32];
  float sums[kChains][4];  // different, so that no two chains are one
  KVREPLAY_UNROLL
  for (int i = 0; i < 4 * kChains; ++i) sums[i / 4][i % 4] = static_cast<float>(lane_id() + i);
  for (int n = 0; n < repeats; ++n) {
    KVREPLAY_UNROLL
    for (int chain = 0; chain < kChains; ++chain) Unit::multiply_add(sums[chain], a, b);
  }
  float sum = 0;
  KVREPLAY_UNROLL
  for (int chain = 0; chain < kChains; ++chain)
    sum += sums[chain][0] + sums[chain][1] + sums[chain][2] + sums[chain][3];
  out[static_cast<std::ptrdiff_t>(block_id().x) * kRateThreads + thread_id()] = sum;
}

constexpr int kFmaChains = 32;
KVREPLAY_KERNEL void fma_register_kernel(const float* factors, float* out, int repeats) {
  float sums[kFmaChains];
  KVREPLAY_UNROLL
  for (int chain = 0; chain < kFmaChains; ++chain) sums[chain] = factors[(lane_id() + chain) % 32];
  const float a = factors[lane_id()], b = factors[(lane_id() + 7) % 32];
  for (int n = 0; n < repeats; ++n) {
    KVREPLAY_UNROLL
    for (int chain = 0; chain < kFmaChains; ++chain) sums[chain] = cuda::fused(a, b, sums[chain]);
  }
  float sum = 0;
  KVREPLAY_UNROLL
  for (int chain = 0; chain < kFmaChains; ++chain) sum += sums[chain];
  out[static_cast<std::ptrdiff_t>(block_id().x) * kRateThreads + thread_id()] = sum;
}

KVREPLAY_KERNEL void read_kernel(const Four* in, std::ptrdiff_t steps, unsigned blocks, float* out) {
  constexpr int kAtOnce = static_cast<int>(kReadStep) / (4 * kRateThreads);
  float sums[4] = {};
  for (std::ptrdiff_t step = block_id().x; step < steps; step += blocks) {
    Four taken[kAtOnce];
    KVREPLAY_UNROLL
    for (int i = 0; i < kAtOnce; ++i) taken[i] = in[(step * kAtOnce + i) * kRateThreads + thread_id()];
    KVREPLAY_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      KVREPLAY_UNROLL
      for (int k = 0; k < 4; ++k) sums[k] += taken[i].at[k];
    }
  }
  out[static_cast<std::ptrdiff_t>(block_id().x) * kRateThreads + thread_id()] =
      sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

void tile_products(Product product, const void* a, const void* b, float* c, int repeats, unsigned blocks,
                   const cuda::Stream& stream) {
  const auto* left = static_cast<const Four*>(a);
  const auto* right = static_cast<const Four*>(b);
  const int passes = repeats * chunks_of(product);
  switch (product) {
    case Product::half:
      return cuda::launch(matrix_tile_kernel<Half>, Grid{blocks}, kRateThreads, kMatrixShared, stream, left,
                          right, c, passes);
    case Product::tf32:
      return cuda::launch(matrix_tile_kernel<Tf32>, Grid{blocks}, kRateThreads, kMatrixShared, stream, left,
                          right, c, passes);
    case Product::fma:
      return cuda::launch(fma_tile_kernel, Grid{blocks}, kRateThreads, kFmaShared, stream, left, right, c,
                          passes);
  }
}

void register_products(Product product, const void* factors, float* out, int repeats, unsigned blocks,
                       const cuda::Stream& stream) {
  const auto* words = static_cast<const Word*>(factors);
  switch (product) {
    case Product::half:
      return cuda::launch(matrix_register_kernel<Half>, Grid{blocks}, kRateThreads, 0, stream, words, out,
                          repeats);
    case Product::tf32:
      return cuda::launch(matrix_register_kernel<Tf32>, Grid{blocks}, kRateThreads, 0, stream, words, out,
                          repeats);
    case Product::fma:
      return cuda::launch(fma_register_kernel, Grid{blocks}, kRateThreads, 0, stream,
                          static_cast<const float*>(factors), out, repeats);
  }
}

double register_flops(Product product) {
  if (product == Product::fma) return 2.0 * kFmaChains * kRateThreads;
  return 2.0 * 16 * 8 * (product == Product::half ? Half::kDepth : Tf32::kDepth) * kChains *
         (kRateThreads / 32);
}

void read_memory(const float* in, std::ptrdiff_t n, float* out, unsigned blocks, const cuda::Stream& stream) {
  cuda::launch(read_kernel, Grid{blocks}, kRateThreads, 0, stream, reinterpret_cast<const Four*>(in),
               n / kReadStep, blocks, out);
}

#if defined(__CUDACC__)

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw cuda::DeviceError(std::string("CUDA: ") + cudaGetErrorString(error));
}

}  // namespace

DeviceFacts device_facts() {
  DeviceFacts facts;
  int device = 0, l2 = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
  check(cudaDriverGetVersion(&facts.driver_cuda));
  check(cudaRuntimeGetVersion(&facts.runtime_cuda));
  facts.l2_bytes = static_cast<std::size_t>(l2);
  return facts;
}

Pinned::Pinned(const void* memory, std::size_t bytes) : memory_(const_cast<void*>(memory)) {
  check(cudaHostRegister(memory_, bytes, cudaHostRegisterDefault));
}
Pinned::~Pinned() {
  if (memory_ != nullptr) cudaHostUnregister(memory_);
}

#else

DeviceFacts device_facts() { return {std::size_t{64} << 10, 0, 0}; }
Pinned::Pinned(const void* memory, std::size_t) : memory_(const_cast<void*>(memory)) {}
Pinned::~Pinned() = default;

#endif

}  // namespace kvreplay::bench
