#pragma once

#include "sim/head_group.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// The largest a_ip ||(v_p * gate_i) W_O(g)|| over the rows, which have a gate, of each candidate: [G, l].
/// Weights and products in T. Cost: |rows| l (2 d + 8) flops a query head, and 2 d_v^2 for each row and token
/// that might be the token's largest, by its weight and the norms of value and gate; at most |rows| l of
/// them. The same bytes for any number of threads. Throws InputError where logits overflow T; what overflows
/// behind them is infinite.
template <class T>
Matrix<double> gated_importance(const HeadGroup<T>& group, RowRange rows, Workers& workers);

}  // namespace kvreplay
