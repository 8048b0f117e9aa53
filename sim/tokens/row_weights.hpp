#pragma once

#include "sim/tokens/column_totals.hpp"

namespace kvreplay {

/// column_totals() of ColumnSet::weights for a single row, whose weights are their own sums: the query heads
/// share a panel, each key is read once, and the logits stay in memory, O(G l).
template <class T>
std::vector<ColumnTotals> row_weights(const HeadGroup<T>& group, Index row, Workers& workers);

}  // namespace kvreplay
