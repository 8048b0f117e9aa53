#pragma once

#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/entry_formulas.hpp"
#include "sim/tokens/tiles.hpp"

// How a panel of rows begins and ends pass one.

namespace kvreplay {

/// The state before any token: nothing seen but the sink column, whose value is 0, that is, -centre after
/// centring.
template <class T>
void start_state(const HeadGroup<T>& group, const PreparedValues<T>& values, Index g, const TileInput<T>& in,
                 bool with_sink, const SoftmaxPanel<T>& state);

/// Ends pass one for a panel: o - centre in place of state.rest_out, the row constants [kRowConstants][W],
/// and what the largest column of each row is worth, [panel_rows]. Throws InputError where a number overflows
/// T.
template <class T>
void finish_panel(const HeadGroup<T>& group, const PreparedValues<T>& values, Index g, const TileInput<T>& in,
                  Index panel, const SoftmaxPanel<T>& state, T* constants, LargestScores* largest);

}  // namespace kvreplay
