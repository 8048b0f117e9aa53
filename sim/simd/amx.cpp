#include "sim/simd/amx.hpp"

// Compiled for AMX where the compiler knows it: nothing here may run before amx_unit() has asked for it.
#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && defined(__linux__)

#include "sim/simd/tile_product.hpp"

#include <cpuid.h>
#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvreplay {
namespace {

/// What LDTILECFG reads: eight tiles of 16 rows, 64 bytes each.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// The tile registers of a thread, which has them for as long as this lives. In assembly: the intrinsics take
/// a register's number as text.
class AmxRegisters {
 public:
  AmxRegisters() {
    static constexpr TileConfig kConfig;
    asm volatile("ldtilecfg %0" : : "m"(kConfig));
  }
  ~AmxRegisters() { asm volatile("tilerelease"); }
  AmxRegisters(const AmxRegisters&) = delete;
  AmxRegisters& operator=(const AmxRegisters&) = delete;

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
  }
  template <int kTile>
  void load(const Bf16* tile) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(tile), "r"(Index{64}), "n"(kTile) : "memory");
  }
  template <int kSum, int kA, int kB>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "n"(kB), "n"(kA), "n"(kSum));
  }
  template <int kTile>
  void store(float* first, Index row_stride) {
    const Index bytes = row_stride * static_cast<Index>(sizeof(float));
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(first), "r"(bytes), "n"(kTile) : "memory");
  }
};

void product(const LeftTiles& a, Index row_tiles, Index depth_tiles, const Bf16* b, float* c) {
  AmxRegisters registers;
  tile_product(registers, a, row_tiles, depth_tiles, b, c);
}

bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1U << 27, kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr unsigned kTileState = 3U << 17;  // of the registers that the system saves
  unsigned saved = 0, high = 0;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  return (saved & kTileState) == kTileState;
}

/// Linux gives a process tiles only when it asks (Documentation/arch/x86/xstate.rst).
bool system_gives_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const MatrixUnit* amx_unit() {
  static constexpr MatrixUnit kUnit{product};
  return processor_has_amx() && system_gives_tiles() ? &kUnit : nullptr;
}

}  // namespace kvreplay

#else

namespace kvreplay {

const MatrixUnit* amx_unit() { return nullptr; }

}  // namespace kvreplay

#endif
