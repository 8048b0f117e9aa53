#pragma once

#include "sim/simd/panel.hpp"
#include "sim/tokens/tiles.hpp"

#include <vector>

// Attention over some of the columns of a panel of rows. The logits of a panel are formed once and serve
// every kept set: what a set costs is an exponential and d_v multiply-adds an entry.

namespace kvreplay {

/// What one instruction set has.
template <class T>
struct KeptTilesSimd {
  /// z [end - begin][W]: the logits of the columns [begin, end) for one panel, -inf where hidden. False where
  /// one of them, hidden or not, is beyond T.
  bool (*logit_panel)(const TileInput<T>& in, Index panel, Index begin, Index end, T* z);

  /// z [n][W]: the logits of n columns that were gathered from `positions` (ascending) for one panel, -inf
  /// where hidden. keys [n][depth] and q [depth][W] hold the same channels, perhaps not all. Which columns
  /// are gathered together does not touch a bit of z. False where one of them, hidden or not, is beyond T.
  bool (*gathered_logits)(const TileInput<T>& in, Index panel, const Index* positions, Index n, const T* keys,
                          const T* q, Index depth, T* z);

  /// See attend_columns(). values [kTokensPassOne][d_v] is scratch memory.
  void (*attend_columns)(const T* z, const Index* columns, Index n, const T* v_centred, Index d_v, T sink,
                         T* values, T* out, T* share);

  /// out [d_model][W] += wo^T x for one panel: wo [d_v][d_model], x [d_v][W].
  void (*project_panel)(const T* wo, Index d_v, Index d_model, const T* x, T* out);
};
/// This machine's best.
template <class T>
KeptTilesSimd<T> kept_tiles_simd();

/// The rows' output over the n columns `columns` of z and the sink column (-inf: none), in two parts: out
/// [d_v][W], the weighted sum of v_centred, and share [W], the weight of the columns, exactly 1 without a
/// sink and 0 where a row sees nothing. The output is out + share centre; apart, neither drowns the other
/// however much the sink takes. v_centred [..][d_v] has a row for each row of z.
template <class T>
void attend_columns(const T* z, const Index* columns, Index n, const T* v_centred, Index d_v, T sink, T* out,
                    T* share) {
  std::vector<T> values(kTokensPassOne * d_v);
  kept_tiles_simd<T>().attend_columns(z, columns, n, v_centred, d_v, sink, values.data(), out, share);
}

}  // namespace kvreplay
