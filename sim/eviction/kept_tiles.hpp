#pragma once

#include "sim/simd/panel.hpp"
#include "sim/tokens/tiles.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

// Attention over some of the columns of a panel of rows. The logits of a panel are formed once and serve
// every kept set: what a set costs is an exponential and d_v multiply-adds an entry.

namespace kvreplay {

/// The output of a panel of rows of one query head in two parts: the weighted sum of centred values, and the
/// weight of the columns, exactly 1 without a sink and 0 where a row sees nothing. The output is vectors +
/// share centre; apart, neither drowns the other however much the sink takes.
template <class T>
struct AttendedOutput {
  std::vector<T> vectors;  ///< [d_v][W]
  std::array<T, kPanelWidth<T>> share;
};

template <class T>
struct AttendedPanel {
  const T* z;  ///< [..][W], logits
  T sink;      ///< logit of the sink column, -inf: none
  AttendedOutput<T>* output;
};

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
  void (*attend_columns)(const AttendedPanel<T>* panels, Index count, const Index* columns, Index n,
                         const T* v_centred, Index d_v, T* values);

  /// out [d_model][W] += wo^T x for one panel: wo [d_v][d_model], x [d_v][W].
  void (*project_panel)(const T* wo, Index d_v, Index d_model, const T* x, T* out);
};
/// This machine's best.
template <class T>
KeptTilesSimd<T> kept_tiles_simd();

/// At most so many panels share a reading of the values.
inline constexpr Index kPanelsTogether = 4;

/// How many of G query heads an item of work takes at once, each with a panel of logits over T tokens: all
/// that may, as long as `threads` have an item each and the logits stay below 32 MiB.
template <class T>
Index heads_together(Index G, Index panels, Index tokens, int threads) {
  constexpr Index kLogits = (Index{32} << 20) / static_cast<Index>(sizeof(T)) / kPanelWidth<T>;
  Index heads = std::clamp<Index>(kLogits / std::max<Index>(tokens, 1), 1, std::min(G, kPanelsTogether));
  while (heads > 1 && div_up(G, heads) * panels < threads) --heads;
  return heads;
}

/// The output of each panel's rows over the n columns `columns` of z and the sink column. v_centred [..][d_v]
/// has a row for each row of z. At most kPanelsTogether panels; which are together does not touch a bit.
template <class T>
void attend_columns(std::span<const AttendedPanel<T>> panels, const Index* columns, Index n,
                    const T* v_centred, Index d_v) {
  std::vector<T> values(kTokensPassOne * d_v);
  for (const AttendedPanel<T>& panel : panels) panel.output->vectors.resize(d_v * kPanelWidth<T>);
  kept_tiles_simd<T>().attend_columns(panels.data(), std::ssize(panels), columns, n, v_centred, d_v,
                                      values.data());
}

}  // namespace kvreplay
