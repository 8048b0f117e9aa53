#pragma once

#include "sim/cuda/emulation.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

// What the instructions of PTX do (ptx_to_cpp.py calls these), each CUDA thread being a fiber of the
// emulation's. Shares no index map with the kernels: those of mma and ldmatrix are CuTe's (NVIDIA/cutlass).
// Approximations err by what PTX allows; a copy to shared memory is made when it is waited for.

// In the place of a kernel's own call (sim/cuda/kernel.hpp).
#define KVREPLAY_CALL(kernel, ...) kvreplay::cuda::ptx::call(kernel, __VA_ARGS__)

namespace kvreplay::cuda::ptx {

// Kernels.

struct Kernel {
  std::string name;
  void (*run)(const unsigned char* parameters);
  std::size_t parameter_bytes;
  std::atomic<bool> ran = false;
};
/// Of a kernel that is C++ too, the code that nvcc made of it.
Kernel& made_by_nvcc(const void* kernel);
struct Known {
  Known(void (*twin)(), const char* name, void (*run)(const unsigned char*), std::size_t parameter_bytes);
};

/// One thread's run.
template <class... Parameters, class... Arguments>
void call(void (*twin)(Parameters...), const Arguments&... arguments) {
  Kernel& kernel = made_by_nvcc(reinterpret_cast<const void*>(twin));
  alignas(16) unsigned char bytes[(0 + ... + (sizeof(Parameters) + alignof(Parameters)))];
  std::size_t end = 0;
  const auto add = [&]<class T>(const T& argument) {
    end = (end + alignof(T) - 1) / alignof(T) * alignof(T);
    std::memcpy(bytes + end, &argument, sizeof(T));
    end += sizeof(T);
  };
  (add(static_cast<Parameters>(arguments)), ...);
  if (end != kernel.parameter_bytes) throw std::logic_error(kernel.name + ": parameters of another size");
  kernel.ran.store(true, std::memory_order_relaxed);
  kernel.run(bytes);
}

/// Whether lane 7 is to do `instruction` wrongly: what KVREPLAY_PTX_FAULT names.
bool wrong_lane(const char* instruction);

// Registers are bits: an operand is read as its type, a result stored in as many bits.

using b8 = std::uint8_t;
using b16 = std::uint16_t;
using b32 = std::uint32_t;
using b64 = std::uint64_t;
using u8 = b8;
using u16 = b16;
using u32 = b32;
using u64 = b64;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f16 = b16;
using f32 = float;
using f64 = double;
using pred = bool;

template <class T, class Register>
T as(Register bits) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<T>(bits);
  } else {
    return static_cast<T>(bits);
  }
}
template <class Register, class T>
void put(Register& to, T x) {
  if constexpr (std::is_floating_point_v<T>) {
    to = std::bit_cast<Register>(x);
  } else {
    to = static_cast<Register>(x);
  }
}

// Threads and memory. Addresses in shared memory begin at 0.

inline unsigned thread_index() { return emulation::this_thread().index; }
inline const emulation::Size3& block() { return emulation::this_thread().block; }
inline u64 in_shared(u64 at) { return reinterpret_cast<u64>(emulation::this_thread().shared) + at; }
template <unsigned kBytes>
u64 aligned(u64 at) {
  if (at % kBytes != 0) throw std::logic_error("an address that is no multiple of " + std::to_string(kBytes));
  return at;
}
template <class T>
T load(u64 at) {
  T x;
  std::memcpy(&x, reinterpret_cast<const void*>(at), sizeof x);
  return x;
}
template <class T>
void store(u64 at, T x) {
  std::memcpy(reinterpret_cast<void*>(at), &x, sizeof x);
}
/// Copies 16 bytes, of which the first `read` are read and the others 0.
inline void cp_async(u64 to, u64 from, u32 read) {
  if (read != 0 && read != 16) throw std::logic_error("cp.async of some bytes");
  const bool wrong = wrong_lane("cp.async");
  emulation::copy_late(reinterpret_cast<void*>(to),
                       read != 0 && !wrong ? reinterpret_cast<const void*>(from) : nullptr);
}

// Integers.

template <std::integral T>
T mul_hi(T a, T b) {
  static_assert(sizeof(T) == 4);
  using Wide = std::conditional_t<std::is_signed_v<T>, s64, u64>;
  return static_cast<T>(static_cast<Wide>(a) * b >> 32);
}
template <std::integral T>
T shl(T x, T n) {
  return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(x << n);
}
template <std::integral T>
T shr(T x, T n) {
  constexpr T kMost = 8 * sizeof(T) - 1;
  return std::is_signed_v<T> || n <= kMost ? static_cast<T>(x >> std::min(n, kMost)) : T{0};
}
/// b with n bits of a from bit `at` on.
template <std::unsigned_integral T>
T bfi(T a, T b, T at, T n) {
  const T ones = shl(static_cast<T>(~shl(static_cast<T>(~T{0}), n)), at);
  return (b & ~ones) | (shl(a, at) & ones);
}
inline u32 carrying(bool& carry, u64 x) {
  carry = (x >> 32 & 1) != 0;
  return static_cast<u32>(x);
}
template <class T>
T lesser(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return std::min(a, b);
}
template <class T>
T greater(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return std::max(a, b);
}

// Numbers.

inline f32 flushed(f32 x) { return std::abs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }
inline f32 saturated(f32 x) { return x > 0 ? std::min(x, 1.0F) : 0.0F; }
/// Up to so many ulp away, which way depends on the digits.
inline f32 off_by_ulps(int ulps, f32 x) {
  if (!(std::abs(x) > 0x1p-120F && std::abs(x) < 0x1p120F)) return x;
  const u32 bits = std::bit_cast<u32>(x);
  const u32 by = (bits * 2654435761U >> 16) % static_cast<u32>(2 * ulps + 1);
  return std::bit_cast<f32>(bits + by - static_cast<u32>(ulps));
}
/// CUDA's own tanh relies on 2 to a whole number being exact.
inline f32 ex2(f32 x) { return std::trunc(x) == x ? std::exp2(x) : off_by_ulps(2, std::exp2(x)); }
inline f32 rcp_ftz(f32 x) { return flushed(off_by_ulps(1, 1 / flushed(x))); }
inline f64 rcp_ftz(f64 x) { return std::bit_cast<f64>(std::bit_cast<u64>(1 / x) & 0xffffffff00000000ULL); }
f32 fma_downward(f32 a, f32 b, f32 c);
f32 from_half(f16 x);
f16 to_half(f32 x);
/// Nearest in 11 digits, ties away from 0.
inline b32 to_tf32(f32 x) {
  const u32 bits = std::bit_cast<u32>(x);
  return std::isfinite(x) ? (bits + 0x1000U) & ~0x1fffU : bits;
}

// What all lanes of a warp do together.

b32 shfl_bfly(b32 x, b32 mask, b32 clamp, b32 lanes);
b32 shfl_idx(b32 x, b32 lane, b32 clamp, b32 lanes);
bool vote_any(bool x, b32 lanes);
/// Four 8x8 matrices of 16-bit numbers; every lane gives the address of a row.
void ldmatrix(b32* to, u64 row, bool transposed);

/// Value v of lane l is at l % 4 * lane[0] + l / 4 * lane[1], and value[i] further for bit i of v.
struct Fragment {
  int values;
  int lane[2], value[3];
  int at(int l, int v) const {
    return l % 4 * lane[0] + l / 4 * lane[1] + (v & 1) * value[0] + (v >> 1 & 1) * value[1] +
           (v >> 2) * value[2];
  }
};
/// D = A B + C with A of 16 x k, B of k x 8, in columns, B transposed.
struct MatrixUnit {
  const char* name;
  int k;
  Fragment a, b;
  double (*number)(const b32* registers, int v);
};
extern const MatrixUnit m16n8k16_f16;
extern const MatrixUnit m16n8k8_tf32;
void mma(const MatrixUnit& unit, f32* c, const b32* a, const b32* b);

}  // namespace kvreplay::cuda::ptx
