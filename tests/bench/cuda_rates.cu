#include "sim/cuda/kernel.hpp"
#include "tests/bench/cuda_rates.hpp"

#if !defined(__CUDACC__)
#include <cmath>
#include <cstring>
#endif

namespace kvreplay::bench {
namespace {

using cuda::block_id, cuda::Grid, cuda::lane_id, cuda::shared_memory, cuda::sync_block, cuda::thread_id,
    cuda::warp_id;

using Word = std::uint32_t;
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

// A warp's share of a tile on matrix units: 64 x 64 in products of 16 x 8 with 32 bytes of each row at once.
// Fragments as in the PTX ISA; those of float16 (16 channels) and of TF32 (8) are the same bytes of a row.
constexpr int kWarpSide = 64, kRowBlocks = kWarpSide / 16, kTokenBlocks = kWarpSide / 8;
constexpr int kStepBytes = 32, kSteps = kChunkBytes / kStepBytes;
constexpr int kStrideBytes = kChunkBytes + 16;  // rows begin in different banks
constexpr std::size_t kMatrixShared = static_cast<std::size_t>(kTileRows + kTileTokens) * kStrideBytes;

struct Fragments {
  Word a[kRowBlocks][4];
  Word b[kTokenBlocks][2];
};

#if defined(__CUDACC__)
/// Four matrices of 8 rows x 16 bytes; the lane names the row 8 i + r of matrix i by lane = 8 i + r.
KVREPLAY_DEVICE void load_matrices(const unsigned char* row, Word& m0, Word& m1, Word& m2, Word& m3) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
               : "r"(address)
               : "memory");
}
KVREPLAY_DEVICE void load(const unsigned char* a, const unsigned char* b, int byte, Fragments& f) {
  const int row = lane_id() % 8, matrix = lane_id() / 8;
  KVREPLAY_UNROLL
  for (int i = 0; i < kRowBlocks; ++i)
    load_matrices(a + (16 * i + row + 8 * (matrix % 2)) * kStrideBytes + byte + 16 * (matrix / 2), f.a[i][0],
                  f.a[i][1], f.a[i][2], f.a[i][3]);
  KVREPLAY_UNROLL
  for (int j = 0; j < kTokenBlocks; j += 2)
    load_matrices(b + (8 * j + row + 8 * (matrix / 2)) * kStrideBytes + byte + 16 * (matrix % 2), f.b[j][0],
                  f.b[j][1], f.b[j + 1][0], f.b[j + 1][1]);
}
#else
Word word_at(const unsigned char* at) {
  Word word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}
void load(const unsigned char* a, const unsigned char* b, int byte, Fragments& f) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  for (int i = 0; i < kRowBlocks; ++i)
    for (int m = 0; m < 4; ++m)
      f.a[i][m] = word_at(a + (16 * i + g + 8 * (m % 2)) * kStrideBytes + byte + 16 * (m / 2) + 4 * t);
  for (int j = 0; j < kTokenBlocks; ++j)
    for (int m = 0; m < 2; ++m) f.b[j][m] = word_at(b + (8 * j + g) * kStrideBytes + byte + 16 * m + 4 * t);
}

/// Number i of a row's `per_word` in each word.
float number_in(Word word, int per_word, int i) {
  if (per_word == 1) {
    float x = 0;
    std::memcpy(&x, &word, sizeof(x));
    return x;
  }
  const Word bits = word >> (16 * i) & 0xffffU;
  const int exponent = static_cast<int>(bits >> 10 & 31U), fraction = static_cast<int>(bits & 1023U);
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                   : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (bits & 0x8000U) != 0 ? -size : size;
}
/// c += a b^T of a warp, the rows of a and b of 8 words.
void emulated_product(int per_word, float* c, const Word* a, const Word* b) {
  struct Operands {
    int per_word;
    Word a[4], b[2];
  } operands{per_word, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  cuda::emulation::warp_together("rate product", {&operands, c}, [](const cuda::emulation::Lanes& lanes) {
    Word left[16][8], right[8][8];
    int per = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const auto& given = *static_cast<const Operands*>(lanes[static_cast<std::size_t>(lane)].given);
      const int g = lane / 4, t = lane % 4;
      per = given.per_word;
      for (int i = 0; i < 4; ++i) left[g + 8 * (i % 2)][t + 4 * (i / 2)] = given.a[i];
      for (int i = 0; i < 2; ++i) right[g][t + 4 * i] = given.b[i];
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto* out = static_cast<float*>(lanes[static_cast<std::size_t>(lane)].taken);
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8 * per; ++k)
          out[i] += number_in(left[lane / 4 + 8 * (i / 2)][k / per], per, k % per) *
                    number_in(right[lane % 4 * 2 + i % 2][k / per], per, k % per);
    }
  });
}
#endif

/// c [16][8] += a [16][kDepth] b [8][kDepth]^T of a warp.
struct Half {
  static constexpr int kDepth = 16;
  KVREPLAY_DEVICE static void multiply_add(float* c, const Word* a, const Word* b) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    KVREPLAY_UNROLL
    for (int i = 0; i < 2; ++i)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
          "%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
#else
    emulated_product(2, c, a, b);
#endif
  }
};
struct Tf32 {
  static constexpr int kDepth = 8;
  KVREPLAY_DEVICE static void multiply_add(float* c, const Word* a, const Word* b) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)c, (void)a, (void)b;
    __trap();  // cuda_floor.cpp leaves it out there
#endif
#else
    emulated_product(1, c, a, b);
#endif
  }
};

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
