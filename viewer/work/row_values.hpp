#pragma once

#include "viewer/work/entry_tiles.hpp"

#include <cstddef>
#include <vector>

// One number a row of the token map: what stands beside the map.

namespace kvreplay::viewer {

/// Whether a row's cells add up to something: squared weights and squared outputs do. Weights add up to 1 in
/// every row, logits and comparisons to nothing: there the cell of largest magnitude speaks for the row.
bool row_adds_up(const EntryView& view);

/// Every n-th row of a block.
struct RowValues {
  std::vector<float> values;
};
std::size_t bytes_of(const RowValues& rows);

/// Rows that a block has a value for.
inline constexpr Index kRowValues = RowCache::kBlockRows;

/// The sum over the row's cells (in float64), or the one of largest magnitude, of the rows r, r + step, .. of
/// the token map, r = block * kRowValues * step: at most kRowValues of them. NaN for a row without cells. The
/// softmax of rows is taken from, and left in, the cache where step is 1. 4 T (d + d_v) flops a row and query
/// head at most, and some 20 an entry; holds 32 x 8192 numbers and kRowValues rows after their softmax.
/// Throws Interrupted within milliseconds where the job is cancelled, InputError where a number overflows.
/// Of cells less those of another run's map, `minus`, the one of largest magnitude.
RowValues row_values(const EntryMap<float>& map, const EntryView& view, Index block, Index step,
                     RowCache& cache, JobControl& job, const EntryMap<float>* minus = nullptr);

}  // namespace kvreplay::viewer
