#pragma once

#include "sim/tokens/column_totals.hpp"

#include <functional>

// Token metrics of any backend: all but the two passes is the same for each.

namespace kvreplay {

/// column_totals() of one head group and its prepared values.
using TotalsOfRows = std::function<std::vector<ColumnTotals>(Rows, ColumnSet)>;
template <class T>
using PassesOf = std::function<TotalsOfRows(const PreparedValues<T>&)>;

/// `passes` is called once, where column sums are needed at all.
template <class T>
TokenMetrics token_metrics_by(const PassesOf<T>& passes, const HeadGroup<T>& group,
                              const TokenOptions& options, Workers& workers);

}  // namespace kvreplay
