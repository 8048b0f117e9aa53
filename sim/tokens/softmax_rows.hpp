#pragma once

#include "sim/tokens/column_totals.hpp"

#include <hwy/aligned_allocator.h>

#include <vector>

namespace kvreplay {

/// One query head's rows after pass one.
template <class T>
struct HeadRows {
  TileInput<T> in{};                             ///< with the head's queries
  hwy::AlignedFreeUniquePtr<T[]> q_panels;       ///< [panels][d][W]
  hwy::AlignedFreeUniquePtr<T[]> out_panels;     ///< [panels][d_v][W]: o - centre
  hwy::AlignedFreeUniquePtr<T[]> row_constants;  ///< [panels][kRowConstants][W]
  hwy::AlignedFreeUniquePtr<T[]> logits;         ///< TileInput's, where asked for
  std::vector<T> others;                         ///< [panels][d_v][W], where asked for: o' - centre, of all
                                                 ///< columns but the largest
  std::vector<LargestScores> largest;            ///< [rows]
};

struct SoftmaxRowsOptions {
  bool outputs = true;  ///< without, d_v is taken to be 0 and the values may be empty
  bool others = false;
  bool keep_logits = false;  ///< for pass two
};

/// Rows that go through both passes before the next do, so that the second need not form their logits again.
struct RowBatch {
  RowRange rows;
  bool keep_logits;
};
/// How rows (not empty) are cut into batches whose logits, of all query heads, take at most `most` bytes.
/// Where those of a panel take more, that panel and all rows after it are one batch, which keeps none.
template <class T>
std::vector<RowBatch> row_batches(const HeadGroup<T>& group, RowRange rows, Index most);

/// Where pass two begins for these rows: no later than the first column that one of them sees.
template <class T>
Index first_scored(const HeadGroup<T>& group, RowRange rows) {
  return group.first_visible(rows.begin) / kTokensPassTwo * kTokensPassTwo;
}

/// Pass one for the given rows (positions, not empty) of every query head: [G]. Throws InputError where a
/// number overflows T.
template <class T>
std::vector<HeadRows<T>> softmax_rows(const HeadGroup<T>& group, const PreparedValues<T>& values,
                                      RowRange rows, const SoftmaxRowsOptions& options, Workers& workers);

}  // namespace kvreplay
