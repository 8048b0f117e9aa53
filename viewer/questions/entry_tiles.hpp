#pragma once

#include "sim/tokens/entry_map.hpp"
#include "viewer/model/camera.hpp"
#include "viewer/model/tiles.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/shared_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

struct PanelContext;

/// The softmax of rows in blocks, for all tiles that need it. Serves any number of maps. Thread safe.
class RowCache {
 public:
  /// Rows of a block; block b of a map begins at position first_query() + b * kBlockRows.
  static constexpr Index kBlockRows = 256;

  explicit RowCache(std::size_t limit) : blocks_(limit, Newest::given) {}

  /// A block of query head g: 4 kBlockRows T d flops where it is not there. Throws Interrupted within
  /// milliseconds where the job is cancelled, InputError where a number overflows.
  std::shared_ptr<const EntryRows<float>> get(const EntryMap<float>& map, Index g, Index block,
                                              JobControl& job) {
    const auto make = [&] {
      const HeadGroup<float>& group = map.group();
      const Index begin = group.first_query() + block * kBlockRows;
      const RowRange positions{begin, std::min(begin + kBlockRows, group.T_all())};
      auto rows = std::make_shared<const EntryRows<float>>(map.rows(g, positions, job.workers()));
      const std::size_t bytes = rows->bytes();
      return std::pair(std::move(rows), bytes);
    };
    return blocks_.get({map.id(), g, block}, make, [&] { job.check(); });
  }
  /// All of them, as far as there is room.
  void set_limit(std::size_t bytes) { blocks_.set_limit(bytes); }
  std::size_t bytes() const { return blocks_.bytes(); }

 private:
  SharedCache<std::tuple<std::uint64_t, Index, Index>, EntryRows<float>> blocks_;  // map, query head, block
};

// Matrix of the token map: rows are the positions with a query (row 0 is first_query()), columns the
// positions 0..T-1.

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

/// Reason why the view is meaningless, in one sentence: a difference or a ratio of quantities of different
/// units. Empty if it is meaningful.
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

/// Time of one core that a preview takes.
inline constexpr double kPreviewSeconds = 0.05;
/// The tile from every n-th row only, n as small as about so many seconds allow, to stand in while
/// entry_tile() takes its time. A row of texels from which no row was taken repeats the nearest other as far
/// as it sees its tokens. Statistics are those of the rows taken.
Tile entry_preview(const EntryMap<float>& map, const EntryView& view, const TileKey& key, JobControl& job,
                   const EntryMap<float>* minus = nullptr, double seconds = kPreviewSeconds);

/// One cell in float64, by the reference: `row` and `token` are positions. NaN where the token is hidden.
double entry_exact(const HeadGroup<double>& group, const EntryView& view, Index row, Index token);

/// Replaces each value by its place among those that are there: 0 the smallest, 1 the largest, equal ones the
/// mean of their places; 0 where it is the only one. NaN stays. O(n log n).
void rank_shares(std::span<float> values);
void rank_shares(std::span<double> values);

/// Query heads that a view adds up: [begin, end) of 0..G-1.
RowRange heads_of(const EntryView& view, Index G);

/// Some rows after their softmax, one entry for each query head of the view.
using HeadRows = std::vector<std::shared_ptr<const EntryRows<float>>>;

/// Rows of the map that is shown, and these of the one that is subtracted, where there is one.
struct RowsOfMaps {
  HeadRows shown, minus = {};
};

/// Cells of a view, some rows and tokens at a time. For one thread.
class ViewCells {
 public:
  /// Rows that are computed as quickly together as one alone.
  static Index rows_at_once();

  /// Cells of `minus`, another run's map, are subtracted; null: none are.
  ViewCells(const EntryMap<float>& map, const EntryView& view, JobControl& job,
            const EntryMap<float>* minus = nullptr);

  /// Tokens of which rows_at_once() rows are some milliseconds of work.
  Index tokens_at_once() const { return at_once_; }
  /// The cells of the rows with numbers [begin, end) of `rows` for the positions `tokens`: [end - begin,
  /// tokens], NaN where hidden. Good until the next call. Throws Interrupted where the job is cancelled,
  /// InputError where a number overflows.
  const std::vector<float>& cells(const RowsOfMaps& rows, Index begin, Index end, RowRange tokens);

 private:
  const std::vector<float>& own_cells(const HeadRows& rows, Index begin, Index end, RowRange tokens);
  const std::vector<float>& compared_cells(const HeadRows& rows, Index begin, Index end, RowRange tokens);
  const std::vector<float>& rank_cells(const HeadRows& rows, Index begin, Index end, RowRange tokens);
  void sum_over_heads(const HeadRows& rows, EntryTerm entry, RowRange take, RowRange tokens,
                      std::vector<float>& sum);

  const EntryMap<float>& map_;
  const EntryView& view_;
  JobControl& job_;
  Index at_once_;
  std::vector<float> shown_, other_, term_;  // [rows, tokens]
  // For ranks: the rows that were ranked last, over all tokens that they see.
  std::shared_ptr<const EntryRows<float>> ranked_;
  Index ranked_begin_ = 0, ranked_end_ = 0;
  RowRange seen_;
  std::vector<float> ranks_;  // [rows, seen]
  std::unique_ptr<ViewCells> minus_;
};

// One number a row of the token map: what stands beside the map.

/// True if the sum over a row's cells is meaningful, as for squared weights and squared outputs. Weights add
/// up to 1 in every row, and sums of logits and comparisons mean nothing: for these, the cell of largest
/// magnitude represents the row.
bool row_adds_up(const EntryView& view);

/// Every n-th row of a block.
struct RowValues {
  std::vector<float> values;
};
inline std::size_t bytes_of(const RowValues& answer) { return bytes_with(answer, answer.values); }

/// Rows that a block has a value for.
inline constexpr Index kRowValues = RowCache::kBlockRows;

/// The sum over the row's cells (in float64), or the one of largest magnitude, of the rows r, r + step, .. of
/// the token map, r = block * kRowValues * step: at most kRowValues of them. NaN for a row without cells. The
/// softmax of rows is taken from, and left in, the cache where step is 1. 4 T (d + d_v) flops a row and query
/// head at most, and some 20 an entry; holds 32 x 8192 numbers and kRowValues rows after their softmax.
/// Throws Interrupted within milliseconds where the job is cancelled, InputError where a number overflows.
/// Where another run's map, `minus`, is subtracted, a row's value is its difference of largest magnitude.
RowValues row_values(const EntryMap<float>& map, const EntryView& view, Index block, Index step,
                     RowCache& cache, JobControl& job, const EntryMap<float>* minus = nullptr);

/// Tiles of single rows and tokens of the selected head. Softmax states of rows are shared by all tiles.
class EntryQuestions {
 public:
  EntryQuestions();

  /// Beginning of the keys of a view's tiles: everything that all of them depend on. If
  /// AppState::subtracted() is a run, all values are differences: the selected run's minus that run's.
  static Key key_of(PanelContext& context, const EntryView& view);
  /// The tile; while it takes long, one made from a part of its rows (`pending` is then set).
  Answer<Tile> tile(PanelContext& context, const EntryView& view, const TileKey& key) const;
  /// One number of every step-th row, kRowValues of them: row_values().
  Answer<RowValues> rows(PanelContext& context, const EntryView& view, Index block, Index step) const;

 private:
  std::shared_ptr<RowCache> rows_;
};

}  // namespace kvreplay::viewer
