#pragma once

#include "sim/tokens/entry_map.hpp"
#include "viewer/model/camera.hpp"
#include "viewer/model/tiles.hpp"
#include "viewer/work/desk.hpp"
#include "viewer/work/row_cache.hpp"

#include <optional>
#include <string>

// What the token map shows: rows are the positions with a query (row 0 is first_query()), columns the
// positions 0..T-1.

namespace kvreplay::viewer {

/// One quantity of the token map.
struct EntryView {
  enum class Against {
    nothing,
    difference,  ///< shown - other
    relative,    ///< (shown - other) / other: NaN where both are 0, a signed infinity where only other is
    rank,        ///< place of shown - place of other among the row's tokens (rank_shares()), -1..1
  };
  Index layer = 0, kv_head = 0;
  std::optional<Index> query_head = {};  ///< 0..G-1; empty: the sum over the group, for a logit the mean
  EntryTerm shown = EntryTerm::attn;
  Against against = Against::nothing;
  EntryTerm other = EntryTerm::attn;  ///< matters where `against` is not nothing
  bool operator==(const EntryView&) const = default;
};

/// Why the view says nothing, in one sentence: a difference or a ratio of quantities of different units.
/// Empty where it says something.
std::string why_not(const EntryView& view);

/// A cell of the view from those of its two quantities, or from their places.
template <class T>
T compared(T shown, EntryView::Against against, T other) {
  if (against == EntryView::Against::difference || against == EntryView::Against::rank) return shown - other;
  if (against == EntryView::Against::nothing) return shown;
  // The sign of a zero is not to turn an infinity's.
  return (shown - other) / (other == 0 ? T(0) : other);
}

/// Cells of the token map.
template <class T>
MatrixSize entry_map_size(const HeadGroup<T>& group) {
  return {group.T_q(), group.T_all()};
}

/// The view's layer and KV head are the map's. A tile costs 2 |rows| |columns| (d + d_v) flops and some 20 an
/// entry, for every query head and quantity, besides the softmax of rows that the cache lacks; what the rows
/// do not see costs nothing; against ranks, all that the rows see counts. Holds 32 |columns| numbers. Throws
/// Interrupted within milliseconds where the job is cancelled, InputError where a number overflows. Of
/// another run's map of the same shape, `minus`, the same cells are subtracted, one by one, at twice the
/// cost.
Tile entry_tile(const EntryMap<float>& map, const EntryView& view, const TileKey& key, RowCache& rows,
                JobControl& job, const EntryMap<float>* minus = nullptr);

/// Of one core.
inline constexpr double kPreviewSeconds = 0.05;
/// The tile from every n-th row only, n as small as about so many seconds allow, to stand in while
/// entry_tile() takes its time. A row of texels from which no row was taken repeats the nearest other as far
/// as it sees its tokens. Statistics are those of the rows taken.
Tile entry_preview(const EntryMap<float>& map, const EntryView& view, const TileKey& key, JobControl& job,
                   const EntryMap<float>* minus = nullptr, double seconds = kPreviewSeconds);

/// One cell in float64, by the reference: `row` and `token` are positions. NaN where the token is hidden.
double entry_exact(const HeadGroup<double>& group, const EntryView& view, Index row, Index token);

}  // namespace kvreplay::viewer
