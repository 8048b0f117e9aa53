#pragma once

#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

// Interaction of key channels in the attention output. To first order, dropping channel c from the prunable
// keys P changes the output of row i by
//   D_i,c = -scale q_ic C_i,c,   C_i,c = sum over p in P of a_ip k_pc (v_p - o_i)
// (with a soft cap every term also has dz/dz_raw = 1 - (z_ip / cap)^2). Dropping the set S therefore changes
// it by the sum of its D_i,c. The squared change over rows and heads is the sum over S x S of sum_i,h D_i,c .
// D_i,d.

namespace kvreplay {

/// Prompt positions that the attention runs over (`cache`), and those of them whose keys lose channels
/// (`prunable`): both [l]. Decoded positions are always in the cache and never pruned.
struct PrunableKeys {
  KeptSet cache, prunable;
};
/// The whole prompt but for its last `recent` positions, which stay whole.
PrunableKeys prompt_keys(Index l, Index recent);

/// [d, d], exactly symmetric: the sum over the rows (positions with a query, not empty) and query heads of
/// D_i,c . D_i,e. In T, sums over rows in float64; the same bytes for any number of threads. Neither a sink
/// that takes nearly all weight nor keys far from 0 cost digits: the row's largest weight never enters a
/// difference 1 - a, and what a channel's keys have in common is taken apart. A row that sees nothing adds 0.
/// Throws InputError where a number overflows T. Cost: 2 G |rows| |P| d d_v flops; memory O(|P| d) and
/// O(l W + d (d + d_v)) a thread, W = kPanelWidth<T>.
template <class T>
Matrix<double> output_interaction(const HeadGroup<T>& group, RowRange rows, const PrunableKeys& keys,
                                  Workers& workers);

/// The CUDA twin, on the calling thread's device (sim/cuda/runtime.hpp), as good and the same bits in every
/// run. Device memory: the keys twice, the values, the rows' queries, and up to 0.5 GiB for 256 rows at a
/// time (or one, where a row alone takes more). Throws DeviceError and OutOfDeviceMemory besides.
Matrix<double> output_interaction_cuda(const HeadGroup<float>& group, RowRange rows, const PrunableKeys& keys,
                                       Workers& workers);

/// About the mean of the keys at the positions `of`, from a sample of them: [d], 0 where there are none.
template <class T>
Vector<T> sampled_key_mean(const HeadGroup<T>& group, const std::vector<Index>& of) {
  constexpr Index kSampled = 256;
  const Index n = std::ssize(of), step = std::max<Index>(div_up(n, kSampled), 1);
  Vector<double> sum = Vector<double>::Zero(group.d());
  for (Index key = 0; key < n; key += step) sum += group.k.row(of[key]).transpose().template cast<double>();
  return (sum / static_cast<double>(std::max<Index>(div_up(n, step), 1))).template cast<T>();
}

/// Reference: D_i,c for every row and head from the definition, in float64: [G][rows] of [d, d_v].
std::vector<std::vector<Matrix<double>>> output_derivatives_reference(const HeadGroup<double>& group,
                                                                      RowRange rows,
                                                                      const PrunableKeys& keys);
/// Reference of output_interaction().
Matrix<double> output_interaction_reference(const HeadGroup<double>& group, RowRange rows,
                                            const PrunableKeys& keys);

/// Softmax weights of a panel of rows. The largest column of each row, which may be the sink column, is
/// stored apart: its weight never enters a difference 1 - a, however close to 1 it is.
///
/// Every weight a is split in two: `changed`, a dz/dz_raw, where the column's key is prunable (dz/dz_raw is 1
/// without a soft cap), and `rest`, the remainder of a.
template <class T>
struct PanelWeights {
  static constexpr Index W = kPanelWidth<T>;
  T* changed;        ///< [n][W], 0 for the largest column
  T* rest;           ///< [n][W], likewise
  T top_at[W];       ///< which column is the largest; -1: the sink, or none, as the row sees nothing
  T top_changed[W];  ///< its weight, in two
  T top_rest[W];
  T sink[W];         ///< the sink's weight, all of it `rest`; 0 where it is the largest
  T changed_sum[W];  ///< of all columns but the largest
  T rest_sum[W];     ///< likewise, the sink with them
};

/// Kernels for one instruction set.
template <class T>
struct OutputInteractionSimd {
  /// z [n][W]: logits before the soft cap, -inf where hidden; may be out.rest. `softcap`: 0 for none; `sink`:
  /// -inf for none; prunable [n].
  void (*weigh_panel)(T* z, Index n, T softcap, T sink, const std::uint8_t* prunable, PanelWeights<T>& out);

  /// out[t] = weights[t] ((v[rows[t]] - origin) - mean) for n rows of v [..][d_v]; out [n][d_v].
  void (*weighted_deviations)(const T* v, Index d_v, const Index* rows, const T* weights, Index n,
                              const T* origin, const T* mean, T* out);
};
/// Kernels for the best instruction set of this machine.
template <class T>
OutputInteractionSimd<T> output_interaction_simd();

}  // namespace kvreplay
