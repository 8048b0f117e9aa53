#pragma once

#include "sim/simd/panel.hpp"
#include "sim/tokens/tiles.hpp"

// Attention over some of the columns of a panel of rows. The logits of a panel are formed once and serve
// every kept set: what a set costs is an exponential and d_v multiply-adds an entry.

namespace kvreplay {

/// z [end - begin][W]: the logits of the columns [begin, end) for one panel, -inf where hidden.
template <class T>
void logit_panel(const TileInput<T>& in, Index panel, Index begin, Index end, T* z);

/// out [d_v][W]: the rows' output over the n columns `columns` of z and the sink column (-inf: none), less
/// `centre` [d_v]. v_centred [..][d_v] has a row for each row of z. A row that sees nothing has output 0.
template <class T>
void attend_columns(const T* z, const Index* columns, Index n, const T* v_centred, const T* centre, Index d_v,
                    T sink, T* out);

/// out [d_model][W] += wo^T x for one panel: wo [d_v][d_model], x [d_v][W].
template <class T>
void project_panel(const T* wo, Index d_v, Index d_model, const T* x, T* out);

}  // namespace kvreplay
