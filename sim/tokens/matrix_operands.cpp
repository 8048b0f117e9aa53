#include "sim/tokens/matrix_operands.hpp"

#include "sim/tokens/tiles.hpp"

#include <algorithm>

namespace kvreplay {

MatrixOperands::MatrixOperands(const MatrixUnit& unit, const HeadGroup<float>& group,
                               const Matrix<float>& v_centred, Workers& workers)
    : unit_(&unit), d_(group.d()), d_v_(v_centred.cols()) {
  constexpr Index kTokensPerItem = 256;
  const Index total = group.T_all(), padded = div_up(total, kTileDepth) * kTileDepth;
  const auto tiles_of = [](Index rows, Index depth) {
    return div_up(rows, kTileRows) * div_up(depth, kTileDepth);
  };
  keys_ = new_tiles(tiles_of(padded, d_));
  values_ = new_tiles(tiles_of(padded, d_v_));
  values_across_ = new_tiles(tiles_of(d_v_, padded));
  const TilesSimd<float> simd = tiles_simd<float>();
  workers.parallel_for(div_up(padded, kTokensPerItem), [&](Index item) {
    const Index first = item * kTokensPerItem, n = std::min(kTokensPerItem, total - first);
    simd.pack_left(group.k.data() + first * d_, n, d_, keys_.get() + tiles_of(first, d_) * kTileNumbers);
    if (d_v_ == 0) return;
    const float* values = v_centred.data() + first * d_v_;
    simd.pack_left(values, n, d_v_, values_.get() + tiles_of(first, d_v_) * kTileNumbers);
    simd.pack_left_transposed(values, n, d_v_, values_across_.get() + tiles_of(d_v_, first) * kTileNumbers);
  });
  // A depth of 32 tokens may have rows of tiles that no token fills.
  for (Index row = div_up(total, kTileRows); row < padded / kTileRows; ++row) {
    std::fill_n(keys_.get() + tiles_of(row * kTileRows, d_) * kTileNumbers, tiles_of(1, d_) * kTileNumbers,
                Bf16{0});
    std::fill_n(values_.get() + tiles_of(row * kTileRows, d_v_) * kTileNumbers,
                tiles_of(1, d_v_) * kTileNumbers, Bf16{0});
  }
}

void MatrixOperands::by_token(const Tiles& rows, Index depth, Index first, Index tokens, const Bf16* panel,
                              float* out) const {
  const Index depth_tiles = div_up(depth, kTileDepth);
  unit_->product({rows.get() + first / kTileRows * depth_tiles * kTileNumbers, depth_tiles, 1},
                 div_up(tokens, kTileRows), depth_tiles, panel, out);
}

void MatrixOperands::over_tokens(Index first, Index tokens, Index channels, Index n, const Bf16* weights,
                                 float* out) const {
  const Index row_tiles = div_up(d_v_, kTileRows);
  unit_->product(
      {values_across_.get() + (first / kTileDepth * row_tiles + channels) * kTileNumbers, 1, row_tiles}, n,
      div_up(tokens, kTileDepth), weights, out);
}

}  // namespace kvreplay
