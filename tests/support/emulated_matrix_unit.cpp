#include "tests/support/emulated_matrix_unit.hpp"

#include "data/npy/half.hpp"
#include "sim/simd/tile_product.hpp"

#include <cstring>

namespace kvreplay::test {
namespace {

class EmulatedRegisters {
 public:
  template <int kTile>
  void zero() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void load(const Bf16* tile) {
    std::memcpy(tiles_[kTile], tile, sizeof(tiles_[kTile]));
  }
  template <int kSum, int kA, int kB>
  void multiply() {
    static_assert(kSum < 4 && kA >= 4 && kB >= 4);
    for (Index m = 0; m < 16; ++m)
      for (Index pair = 0; pair < 16; ++pair)
        for (Index n = 0; n < 16; ++n)
          for (Index half = 0; half < 2; ++half)
            number<float>(kSum, m, n) += bfloat_to_float(number<Bf16>(kA, m, 2 * pair + half)) *
                                         bfloat_to_float(number<Bf16>(kB, pair, 2 * n + half));
  }
  template <int kTile>
  void store(float* first, Index row_stride) {
    for (Index m = 0; m < 16; ++m) std::memcpy(first + m * row_stride, tiles_[kTile] + m * 64, 64);
  }

 private:
  template <class T>
  T& number(int tile, Index row, Index column) {
    return reinterpret_cast<T*>(tiles_[tile] + row * 64)[column];
  }
  alignas(64) unsigned char tiles_[8][1024];
};

void product(const LeftTiles& a, Index row_tiles, Index depth_tiles, const Bf16* b, float* c) {
  EmulatedRegisters registers;
  tile_product(registers, a, row_tiles, depth_tiles, b, c);
}

}  // namespace

const MatrixUnit& emulated_matrix_unit() {
  static constexpr MatrixUnit kUnit{product};
  return kUnit;
}

}  // namespace kvreplay::test
