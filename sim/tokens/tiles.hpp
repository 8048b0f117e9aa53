#pragma once

#include "sim/simd/panel.hpp"
#include "sim/tokens/row_scores.hpp"

#include <algorithm>
#include <cassert>

// Two passes over tiles of K Q^T, one work item at a time. Query rows lie along the vector lanes, W =
// kPanelWidth<T> to a panel. Keys and values are read as they lie in the dump, and every per-row quantity is
// a vector.
//
//   pass one   logits of a tile -> running softmax state of every row, its largest column set apart
//   pass two   the tile again   -> a, z and v.o of every entry -> column sums of every metric
//
// The largest column of a row never enters the running sums (rest_*). The rest of the row after this column
// is removed or changed is therefore known without a subtraction, however close to 1 its weight is.

namespace kvreplay {

/// Results of pass one for one panel of rows. Rows that see nothing have top = rest_max = -inf.
template <class T>
struct SoftmaxPanel {
  T* top;       ///< [W] largest logit
  T* top_at;    ///< [W] its position (the lowest one among equals)
  T* rest_max;  ///< [W] largest logit of the others, the sink column among them
  T* rest_sum;  ///< [W] sum over the others of exp(z - rest_max)
  T* rest_out;  ///< [d_v][W] sum over the others of exp(z - rest_max) (v_p - centre)
};

/// Logits that pass one leaves for pass two to use up, uncapped and none hidden: [panels][columns][W] from
/// the column `first` on. Logits of columns that no row of a panel sees are not initialised.
template <class T>
struct KeptLogits {
  T* all = nullptr;  ///< null: none
  Index first = 0;
  Index columns = 0;

  explicit operator bool() const { return all != nullptr; }
  T* at(Index panel, Index p) const {
    assert(p >= first && p < first + columns);
    return all + (panel * columns + p - first) * kPanelWidth<T>;
  }
};

/// Input of both passes: a head group's keys and values, and one query head's rows.
template <class T>
struct TileInput {
  const T* k;          ///< [T][d]
  const T* v_centred;  ///< [T][d_v], v_p - centre
  Index d;
  Index d_v;          ///< 0: outputs are left out
  const T* q_panels;  ///< [panels][d][W], scale * q; padded columns are 0
  Index first_row;    ///< position of the first row
  Index n_rows;
  Index row_step = 1;  ///< positions from one row to the next
  Index total;         ///< positions T
  bool causal;
  Index sliding_window;   ///< 0: none
  bool two_sided;         ///< true: the sliding window hides positions ahead of it, too
  T softcap;              ///< 0: none
  const Index* position;  ///< HeadGroup::position, null where it is empty
  KeptLogits<T> logits;

  Index panels() const { return panels_of<T>(n_rows); }
  Index panel_rows(Index panel) const { return std::min(kPanelWidth<T>, n_rows - panel * kPanelWidth<T>); }
  Index panel_first(Index panel) const { return first_row + panel * kPanelWidth<T> * row_step; }
  Index panel_last(Index panel) const { return panel_first(panel) + (panel_rows(panel) - 1) * row_step; }
  /// The rows of a panel that start with its first, one row_step apart, and lie before `distance` positions
  /// from it.
  Index rows_before(Index distance) const {
    const Index rows = distance > 0 ? div_up(distance, row_step) : 0;
    return std::min(rows, kPanelWidth<T>);
  }
  Index position_of(Index p) const { return position == nullptr ? p : position[p]; }
  Index first_visible(Index i) const {
    if (sliding_window == 0) return 0;
    const Index first = std::max<Index>(position_of(i) + 1 - sliding_window, 0);
    return position == nullptr ? first : std::lower_bound(position, position + total, first) - position;
  }
  Index end_visible(Index i) const {
    if (causal) return i + 1;
    if (!two_sided) return total;
    const Index end = position_of(i) + sliding_window;
    return position == nullptr ? std::min(end, total)
                               : std::lower_bound(position, position + total, end) - position;
  }
};

// Multiples of 12, the rows that the product takes at once.
/// Tokens of a pass-one tile.
inline constexpr Index kTokensPassOne = 252;
/// Tokens of a pass-two item, and of a tile within it.
inline constexpr Index kTokensPassTwo = 144, kTokensPerTile = 36;
/// Panels that share a tile's keys before the next tile is taken.
inline constexpr Index kPanelsPerBlock = 4;

/// One panel of rows at the end of pass one: data of each row's largest column, and the sums that need its
/// value.
template <class T>
struct LargestColumns {
  static constexpr Index W = kPanelWidth<T>;
  const T* value[W];  ///< v - centre of the largest column
  T a[W];             ///< its weight
  T z_rest[W];        ///< z (1 - a), z as the Taylor scores take it
  T delta[W];         ///< change of its weight when its key is zeroed
  T per_sum[W];       ///< 1 / rest_sum, 0 where the row sees nothing else
  T alone[W];         ///< 1 where the row sees nothing else, else 0
  // Found by finish_rows; o' is the output of the others alone:
  T diff_sq[W];         ///< ||v - o'||^2
  T joint[W];           ///< ||v + z (1 - a) (v - o')||^2
  T exact_joint[W];     ///< ||a v + delta o'||^2
  T out_sq[W];          ///< ||o||^2
  T out_centred_sq[W];  ///< ||o - centre||^2
  T centre_dot_out[W];  ///< centre . (o - centre)
};

/// Per-row constants of pass two, [kRowConstants][W] a panel. For padded rows lse is +inf and all else 0,
/// zero_weight_sum 1.
enum RowConstant {
  kLse,             ///< log-sum-exp of the row
  kRescale,         ///< g = exp(min(lse, 0)): keeps the closed forms finite for any lse
  kZeroLogit,       ///< e = g exp(-lse) = exp(-max(lse, 0)), g times the weight of a logit 0
  kZeroWeightSum,   ///< g + e
  kZeroLogitOutSq,  ///< e^2 ||o||^2
  kOutCentredSq,    ///< ||o - centre||^2
  kCentreDotOut,    ///< centre . (o - centre)
  kTopAt,           ///< the position left out: it is scored from the rest_* sums
  kRowConstants
};

/// Per-token constants of pass two, each [T].
template <class T>
struct TokenConstants {
  const T* centre;            ///< [d_v]
  const T* value_sq;          ///< ||v||^2
  const T* value_centred_sq;  ///< ||v - centre||^2
  const T* centre_dot_value;  ///< centre . (v - centre)
};

/// Column sums that pass two adds to, float64, each [candidates]; null where the ColumnSet has not got them.
struct ColumnSums {
  double* of[kRowSums];  ///< by RowScore
  double* max_attn;      ///< largest a instead of a sum
};

/// Kernels for one instruction set.
template <class T>
struct TilesSimd {
  /// Adds the tokens [begin, end) to the states of the panels [panel, panel + n), in order of position.
  void (*softmax_tiles)(const TileInput<T>& in, Index panel, Index n, Index begin, Index end,
                        const SoftmaxPanel<T>* states);

  /// into := into merged with `later`, whose tokens all come after those of `into`.
  void (*merge_states)(const TileInput<T>& in, const SoftmaxPanel<T>& later, const SoftmaxPanel<T>& into);

  /// Turns rest_out [d_v][W] into o - centre and fills the sums of `largest`.
  void (*finish_rows)(const T* centre, Index d_v, T* rest_out, LargestColumns<T>& largest);

  /// Pass two for the tokens [begin, end), at most kTokensPassTwo of them, and every row of one query head.
  /// row_constants [panels][kRowConstants][W]; out_panels [panels][d_v][W]: o - centre.
  void (*score_tiles)(const TileInput<T>& in, const T* row_constants, const T* out_panels,
                      const TokenConstants<T>& tokens, ColumnSet columns, Index begin, Index end,
                      const ColumnSums& sums);
};
/// Kernels for the best instruction set of this machine.
template <class T>
TilesSimd<T> tiles_simd();

}  // namespace kvreplay
