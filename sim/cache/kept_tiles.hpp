#pragma once

#include "sim/simd/panel.hpp"
#include "sim/tokens/tiles.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

// Attention over some of the columns of a panel of rows, a tile of them at a time: a tile's logits are used
// while they are in the cache, and a new largest logit rescales what was added up before it.

namespace kvreplay {

/// The output of a panel of rows of one query head in two parts: the weighted sum of centred values, and the
/// weight of the columns, exactly 1 without a sink and 0 where a row sees nothing. The output is vectors +
/// share centre; apart, neither drowns the other however much the sink takes.
template <class T>
struct AttendedOutput {
  std::vector<T> vectors;  ///< [d_v][W]
  std::array<T, kPanelWidth<T>> share;
};

/// A panel of rows of one query head on its way over the columns.
template <class T>
struct AttendedPanel {
  static constexpr Index W = kPanelWidth<T>;

  T sink;                     ///< logit of the sink column, -inf: none
  AttendedOutput<T>* output;  ///< its vectors: sum of exp(z - largest) v_centred so far
  std::array<T, W> largest;   ///< logit so far, the sink's among them; -inf: none
  std::array<T, W> sums{};    ///< of exp(z - largest) over the columns so far

  AttendedPanel(T sink_logit, Index d_v, AttendedOutput<T>& into) : sink(sink_logit), output(&into) {
    output->vectors.assign(d_v * W, T{0});
    largest.fill(sink);
  }
};

/// Kernels for one instruction set.
template <class T>
struct KeptTilesSimd {
  /// z [end - begin][W]: the logits of the columns [begin, end) for one panel, -inf where hidden. False where
  /// one of them, hidden or not, is beyond T.
  bool (*logit_panel)(const TileInput<T>& in, Index panel, Index begin, Index end, T* z);

  /// z [n][W]: the logits of n columns that were gathered from `positions` (ascending) for one panel, -inf
  /// where hidden. keys [n][depth] and q [depth][W] hold the same channels, perhaps not all. The bits of z do
  /// not depend on the other columns of a call. False where a logit, hidden or not, is beyond T.
  bool (*gathered_logits)(const TileInput<T>& in, Index panel, const Index* positions, Index n, const T* keys,
                          const T* q, Index depth, T* z);

  /// Adds n columns, at most kTokensPassOne, to a panel: z [..][W] holds their logits in the rows `columns`,
  /// values [n][d_v] their centred values. The choice of rows of z does not change a bit of the result.
  void (*attend_tile)(const T* z, const Index* columns, Index n, const T* values, Index d_v,
                      AttendedPanel<T>& panel);

  /// Change of the first `rows` rows' outputs from `before` (null: from 0); outputs are about a centre [d_v].
  /// Returns the sum of its squares, in float64. Writes, where not null, change [d_v][W], 0 in the padding.
  double (*output_change)(const AttendedOutput<T>& output, const AttendedOutput<T>* before, const T* centre,
                          Index rows, T* change);

  /// out [d_model][W] += wo^T x for one panel: wo [d_v][d_model], x [d_v][W].
  void (*project_panel)(const T* wo, Index d_v, Index d_model, const T* x, T* out);
};
/// Kernels for the best instruction set of this machine.
template <class T>
KeptTilesSimd<T> kept_tiles_simd();

/// At most so many query heads share a reading of the values.
inline constexpr Index kHeadsTogether = 4;

/// Number of query heads, out of G, that a work item takes at once: at most `most`, and few enough that each
/// of `threads` threads gets an item.
inline Index heads_together(Index G, Index panels, int threads, Index most = kHeadsTogether) {
  Index heads = std::clamp<Index>(most, 1, std::min(G, kHeadsTogether));
  while (heads > 1 && div_up(G, heads) * panels < threads) --heads;
  return heads;
}

/// The output in place of the sums, once every column was added.
template <class T>
void finish_attending(AttendedPanel<T>& panel) {
  constexpr Index W = kPanelWidth<T>;
  AttendedOutput<T>& out = *panel.output;
  std::array<T, W> scale;
  for (Index r = 0; r < W; ++r) {
    const T in_sink = std::isfinite(panel.sink) ? std::exp(panel.sink - panel.largest[r]) : T{0};
    const T total = panel.sums[r] + in_sink;
    scale[r] = total > 0 ? T{1} / total : T{0};
    out.share[r] = in_sink > 0 ? panel.sums[r] * scale[r] : (panel.sums[r] > 0 ? T{1} : T{0});
  }
  for (std::size_t at = 0; at < out.vectors.size(); ++at) out.vectors[at] *= scale[at % W];
}

}  // namespace kvreplay
