#include "sim/simd/matrix_unit.hpp"

#include "sim/simd/amx.hpp"
#include "sim/simd/bf16_dots.hpp"

#include <algorithm>
#include <cstddef>
#include <new>

namespace kvreplay {
namespace {

constexpr std::align_val_t kCacheLine{64};

}  // namespace

void DeleteTiles::operator()(Bf16* tiles) const { ::operator delete(tiles, kCacheLine); }

Tiles new_tiles(Index tiles) {
  const auto bytes = static_cast<std::size_t>(std::max<Index>(tiles, 1) * kTileNumbers) * sizeof(Bf16);
  return Tiles(static_cast<Bf16*>(::operator new(bytes, kCacheLine)));
}

const MatrixUnit* matrix_unit() {
  static const MatrixUnit* const tiles = amx_unit();
  return tiles != nullptr ? tiles : bf16_dots_unit();
}

std::string why_no_matrix_unit() {
  return matrix_unit() != nullptr
             ? ""
             : "this processor has no bfloat16 products (AMX, AVX-512 BF16) that a program may use";
}

}  // namespace kvreplay
