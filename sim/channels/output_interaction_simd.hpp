#pragma once

#include "sim/simd/panel.hpp"

#include <cstdint>

namespace kvreplay {

/// What the softmax of a panel of rows comes to, the largest column of each row (the sink column among them)
/// set apart: so its weight never enters a difference 1 - a, however much it takes.
///
/// Every weight a is split in two: `changed`, a dz/dz_raw, where the column's key is prunable (dz/dz_raw is 1
/// without a soft cap), and `rest`, all else of a.
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

/// What one instruction set has.
template <class T>
struct OutputInteractionSimd {
  /// z [n][W]: logits before the soft cap, -inf where hidden; may be out.rest. `softcap`: 0 for none; `sink`:
  /// -inf for none; prunable [n].
  void (*weigh_panel)(T* z, Index n, T softcap, T sink, const std::uint8_t* prunable, PanelWeights<T>& out);

  /// out[t] = weights[t] ((v[rows[t]] - origin) - mean) for n rows of v [..][d_v]; out [n][d_v].
  void (*weighted_deviations)(const T* v, Index d_v, const Index* rows, const T* weights, Index n,
                              const T* origin, const T* mean, T* out);
};
/// This machine's best.
template <class T>
OutputInteractionSimd<T> output_interaction_simd();

}  // namespace kvreplay
