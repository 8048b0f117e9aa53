#include "tests/ptx/machine.hpp"

#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <immintrin.h>
#include <unordered_map>

namespace kvreplay::cuda::ptx {
namespace {

/// Tells at the program's end which kernels ran: a line each, to the file that KVREPLAY_PTX_RAN names.
struct Kernels {
  std::unordered_map<const void*, Kernel> of;
  ~Kernels() {
    const char* name = std::getenv("KVREPLAY_PTX_RAN");
    std::FILE* file = name != nullptr ? std::fopen(name, "a") : nullptr;
    if (file == nullptr) return;
    for (const auto& [address, kernel] : of)
      std::fprintf(file, "%s %s\n", kernel.ran ? "ran" : "idle", kernel.name.c_str());
    std::fclose(file);
  }
};
Kernels& kernels() {
  static Kernels all;
  return all;
}

void expect_all(b32 lanes) {
  if (lanes != 0xffffffffU) throw std::logic_error("some lanes of a warp");
}
b32 shuffle(b32 x, b32 from, b32 clamp, b32 lanes) {
  expect_all(lanes);
  if (clamp != 31) throw std::logic_error("shuffles within parts of a warp");
  return emulation::shuffle(x, wrong_lane("shfl") ? thread_index() % 32 ^ 1 : from);
}

/// copy_traits_sm75.hpp, SM75_U32x4_LDSM_N and SM75_U16x8_LDSM_T.
template <bool kTransposed>
void load_matrices(const emulation::Lanes& all) {
  f16 numbers[32][8];
  for (int l = 0; l < 32; ++l) std::memcpy(numbers[l], *static_cast<const void* const*>(all[l].given), 16);
  for (int l = 0; l < 32; ++l)
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half) {
        const int bit = kTransposed ? 256 * (l % 4) + 16 * (l / 4) + 128 * half : 32 * l + 16 * half;
        std::memcpy(static_cast<f16*>(all[l].taken) + 2 * r + half, &numbers[bit / 128 + 8 * r][bit / 16 % 8],
                    2);
      }
}

}  // namespace

Known::Known(void (*twin)(), const char* name, void (*run)(const unsigned char*),
             std::size_t parameter_bytes) {
  Kernel& kernel = kernels().of[reinterpret_cast<const void*>(twin)];
  if (kernel.run != nullptr) throw std::logic_error(kernel.name + " and " + name + " are one function");
  kernel.name = name;
  kernel.run = run;
  kernel.parameter_bytes = parameter_bytes;
}

Kernel& made_by_nvcc(const void* kernel) {
  const auto found = kernels().of.find(kernel);
  if (found == kernels().of.end()) throw std::logic_error("a kernel that nvcc did not compile");
  return found->second;
}

bool wrong_lane(const char* instruction) {
  static const char* const fault = std::getenv("KVREPLAY_PTX_FAULT");
  return fault != nullptr && std::strcmp(fault, instruction) == 0 && thread_index() % 32 == 7;
}

f32 fma_downward(f32 a, f32 b, f32 c) {
  std::fesetround(FE_DOWNWARD);
  volatile f32 x = a, y = b, z = c;
  volatile f32 sum = std::fma(x, y, z);
  std::fesetround(FE_TONEAREST);
  return sum;
}
f32 from_half(f16 x) { return _cvtsh_ss(x); }
f16 to_half(f32 x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

b32 shfl_bfly(b32 x, b32 mask, b32 clamp, b32 lanes) {
  return shuffle(x, thread_index() % 32 ^ mask, clamp, lanes);
}
b32 shfl_idx(b32 x, b32 lane, b32 clamp, b32 lanes) { return shuffle(x, lane % 32, clamp, lanes); }

bool vote_any(bool x, b32 lanes) {
  expect_all(lanes);
  bool any = false;
  emulation::warp_together("vote.any", {&x, &any}, [](const emulation::Lanes& all) {
    const bool found = std::any_of(all.begin(), all.end(),
                                   [](const auto& lane) { return *static_cast<const bool*>(lane.given); });
    for (const auto& lane : all) *static_cast<bool*>(lane.taken) = found;
  });
  return any;
}

void ldmatrix(b32* to, u64 row, bool transposed) {
  const void* from = reinterpret_cast<const void*>(aligned<16>(row));
  if (transposed) {
    emulation::warp_together("ldmatrix.trans", {&from, to}, load_matrices<true>);
  } else {
    emulation::warp_together("ldmatrix", {&from, to}, load_matrices<false>);
  }
  if (wrong_lane(transposed ? "ldmatrix.trans" : "ldmatrix")) std::swap(to[0], to[1]);
}

// mma_traits_sm80.hpp, SM80_16x8x16_F32F16F16F32_TN and SM80_16x8x8_F32TF32TF32F32_TN; TF32 is the upper 19
// bits.
const MatrixUnit m16n8k16_f16{
    "mma.f16", 16, {8, {32, 1}, {16, 8, 128}}, {4, {16, 1}, {8, 64, 0}}, [](const b32* registers, int v) {
      return double{from_half(static_cast<f16>(registers[v / 2] >> (v % 2 * 16)))};
    }};
const MatrixUnit m16n8k8_tf32{
    "mma.tf32", 8, {4, {16, 1}, {8, 64, 0}}, {2, {8, 1}, {32, 0, 0}}, [](const b32* registers, int v) {
      return double{std::bit_cast<f32>(registers[v] & ~0x1fffU)};
    }};
constexpr Fragment kSums{4, {32, 1}, {16, 8, 0}};

void mma(const MatrixUnit& unit, f32* c, const b32* a, const b32* b) {
  struct Given {
    const MatrixUnit& unit;
    const b32 *a, *b;
  } given{unit, a, b};
  emulation::warp_together(unit.name, {&given, c}, [](const emulation::Lanes& all) {
    const MatrixUnit& u = static_cast<const Given*>(all[0].given)->unit;
    double left[16 * 16], right[8 * 16], sums[16 * 8];
    for (int l = 0; l < 32; ++l) {
      const auto* lane = static_cast<const Given*>(all[l].given);
      for (int v = 0; v < u.a.values; ++v) left[u.a.at(l, v)] = u.number(lane->a, v);
      for (int v = 0; v < u.b.values; ++v) right[u.b.at(l, v)] = u.number(lane->b, v);
      for (int v = 0; v < kSums.values; ++v) sums[kSums.at(l, v)] = static_cast<const f32*>(all[l].taken)[v];
    }
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < u.k; ++k)
        for (int m = 0; m < 16; ++m) sums[m + 16 * n] += left[m + 16 * k] * right[n + 8 * k];
    for (int l = 0; l < 32; ++l)
      for (int v = 0; v < kSums.values; ++v)
        static_cast<f32*>(all[l].taken)[v] = emulation::truncated(sums[kSums.at(l, v)]);
  });
  if (wrong_lane(unit.name)) std::swap(c[0], c[1]);
}

}  // namespace kvreplay::cuda::ptx
