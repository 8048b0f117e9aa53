#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/matrix_unit.hpp"

namespace kvreplay {

/// A head group's keys and values as left operands of a matrix unit, rounded to bfloat16: two digits of
/// every product.
class MatrixOperands {
 public:
  /// v_centred [T, d_v] may be empty.
  MatrixOperands(const MatrixUnit& unit, const HeadGroup<float>& group, const Matrix<float>& v_centred,
                 Workers& workers);

  /// k q, or (v - centre) o, of the tokens from `first`, a multiple of kTileRows, on: [kTileRows][W] for
  /// every kTileRows of them. `panel`: right tiles.
  void with_keys(Index first, Index tokens, const Bf16* panel, float* out) const {
    by_token(keys_, d_, first, tokens, panel, out);
  }
  void with_values(Index first, Index tokens, const Bf16* panel, float* out) const {
    by_token(values_, d_v_, first, tokens, panel, out);
  }
  /// Sums over the tokens from `first`, a multiple of kTileDepth, on: of kTileRows channels each for `n` of
  /// their tiles from tile `channels` on, [n kTileRows][W].
  void over_tokens(Index first, Index tokens, Index channels, Index n, const Bf16* weights, float* out) const;

 private:
  void by_token(const Tiles& rows, Index depth, Index first, Index tokens, const Bf16* panel,
                float* out) const;

  const MatrixUnit* unit_;
  Index d_, d_v_;
  Tiles keys_, values_, values_across_;
};

}  // namespace kvreplay
