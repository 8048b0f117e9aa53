#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/row_scores.hpp"
#include "sim/tokens/tiles.hpp"

#include <hwy/aligned_allocator.h>

#include <array>
#include <span>
#include <vector>

// Middle layer of the fast path: both passes over one set of rows, in parallel.

namespace kvreplay {

/// Keys and values of a head group, prepared for all row sets and query heads.
template <class T>
struct PreparedValues {
  Vector<T> centre;    ///< [d_v], about the mean of the values: any constant serves, a near one cancels less
  Matrix<T> centred;   ///< [T, d_v], v_p - centre
  Vector<T> value_sq;  ///< [T]
  Vector<T> value_centred_sq;     ///< [T]
  Vector<T> centre_dot_value;     ///< [T], centre . (v_p - centre)
  Vector<double> candidate_mean;  ///< [d_v], mean over the candidates of v_p - centre
};

/// PreparedValues::centre, from 256 of the values: O(256 d_v).
template <class T>
Vector<T> value_centre(const HeadGroup<T>& group);
template <class T>
PreparedValues<T> prepare_values(const HeadGroup<T>& group, Workers& workers);

/// Input of the tiles for a group and a set of rows; the caller fills in q_panels.
template <class T>
TileInput<T> tile_input(const HeadGroup<T>& group, const PreparedValues<T>& values, RowRange rows);

/// scale * q of one panel of rows: out [d][W], 0 in the padding.
template <class T>
void pack_query_panel(const HeadGroup<T>& group, const TileInput<T>& in, Index g, Index panel, T* out);

/// Column sums of one query head over a set of rows, each [l]. The ColumnSet determines the sums that are
/// computed.
struct ColumnTotals {
  std::array<Vector<double>, kRowSums> sums;
  Vector<double> max_attn;

  Vector<double>& operator[](RowScore score) { return sums[sum_at(score)]; }
  const Vector<double>& operator[](RowScore score) const { return sums[sum_at(score)]; }
};

/// Zeros for the sums of a ColumnSet: [l] each.
ColumnTotals empty_totals(Index l, ColumnSet columns);
/// Adds the scores of the rows' largest columns, in order.
void add_largest(std::span<const LargestScores> rows, ColumnSet columns, Index l, ColumnTotals& totals);

/// Bytes of logits that are kept between the passes. At d = 128, writing and reading them takes half the time
/// of their product if they leave the processor's cache, a tenth if they do not.
inline constexpr Index kMostLogits = Index{32} << 20;

/// Runs both passes for the given rows (positions) of every query head: [G]. Rows must not be empty. The
/// values may be empty if the columns need no outputs. most_logits: bytes of logits that pass one may leave
/// for pass two.
template <class T>
std::vector<ColumnTotals> column_totals(const HeadGroup<T>& group, const PreparedValues<T>& values,
                                        RowRange rows, ColumnSet columns, Workers& workers,
                                        Index most_logits = kMostLogits);

/// State before any token: the row has seen only the sink column, whose value is 0, that is, -centre after
/// centring.
template <class T>
void start_state(const HeadGroup<T>& group, const PreparedValues<T>& values, Index g, const TileInput<T>& in,
                 bool with_sink, const SoftmaxPanel<T>& state);

/// Ends pass one for a panel: o - centre in place of state.rest_out, the row constants [kRowConstants][W],
/// and the scores of the largest column of each row, [panel_rows]. Throws InputError where a number overflows
/// T.
template <class T>
void finish_panel(const HeadGroup<T>& group, const PreparedValues<T>& values, Index g, const TileInput<T>& in,
                  Index panel, const SoftmaxPanel<T>& state, T* constants, LargestScores* largest);

/// column_totals() of ColumnSet::weights for a single row, whose weights are their own sums: the query heads
/// share a panel, each key is read once, and the logits stay in memory, O(G l).
template <class T>
std::vector<ColumnTotals> row_weights(const HeadGroup<T>& group, Index row, Workers& workers);

/// Rows (positions) and the columns to sum over them.
struct ColumnRequest {
  RowRange rows;
  ColumnSet columns;
};
/// True if one of the requests needs outputs.
bool needs_outputs(std::span<const ColumnRequest> requests);

/// One query head's rows after pass one.
template <class T>
struct HeadRows {
  TileInput<T> in{};                             ///< with the head's queries
  hwy::AlignedFreeUniquePtr<T[]> q_panels;       ///< [panels][d][W]
  hwy::AlignedFreeUniquePtr<T[]> out_panels;     ///< [panels][d_v][W]: o - centre
  hwy::AlignedFreeUniquePtr<T[]> row_constants;  ///< [panels][kRowConstants][W]
  hwy::AlignedFreeUniquePtr<T[]> logits;         ///< TileInput's, on request
  std::vector<T> others;                         ///< [panels][d_v][W], on request: o' - centre, of all
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
/// Cuts rows (not empty) into batches whose logits, of all query heads, take at most `most` bytes. Where the
/// logits of one panel take more, this panel and all rows after it are one batch, which keeps no logits.
template <class T>
std::vector<RowBatch> row_batches(const HeadGroup<T>& group, RowRange rows, Index most);

/// First column of pass two for these rows: no later than the first column that one of them sees.
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
