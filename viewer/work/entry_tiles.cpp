#include "viewer/work/entry_tiles.hpp"

#include "viewer/model/numbers.hpp"
#include "viewer/work/rank_shares.hpp"
#include "viewer/work/view_cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Adds rows of cells to one tile.
class TileRows {
 public:
  TileRows(const EntryMap<float>& map, const EntryView& view, TileBuilder& builder, JobControl& job,
           const EntryMap<float>* minus)
      : map_(map), builder_(builder), cells_of_(map, view, job, minus) {}

  /// The columns of the tile that some row of the positions [first, last] sees.
  RowRange visible(Index first, Index last) const {
    return {std::max(builder_.first_column(), map_.group().first_visible(first)),
            std::min(builder_.end_column(), map_.group().end_visible(last))};
  }
  /// Those with numbers [begin, end) of `rows`, at most ViewCells::rows_at_once().
  void add(const RowsOfMaps& rows, Index begin, Index end);

 private:
  const EntryMap<float>& map_;
  TileBuilder& builder_;
  ViewCells cells_of_;
  std::vector<float> cells_;  // [rows, columns of the tile]
};

void TileRows::add(const RowsOfMaps& rows, Index begin, Index end) {
  const EntryRows<float>& first = *rows.shown.front();
  const RowRange columns = visible(first.position(begin), first.position(end - 1));
  if (columns.count() == 0) return;
  const Index width = builder_.end_column() - builder_.first_column(), n = end - begin;
  cells_.assign(n * width, kNaN);
  for (Index from = columns.begin; from < columns.end; from += cells_of_.tokens_at_once()) {
    const Index to = std::min(from + cells_of_.tokens_at_once(), columns.end);
    const std::vector<float>& some = cells_of_.cells(rows, begin, end, {from, to});
    for (Index r = 0; r < n; ++r)
      std::copy_n(some.data() + r * (to - from), to - from,
                  cells_.data() + r * width + (from - builder_.first_column()));
  }
  for (Index r = 0; r < n; ++r)
    builder_.add_row(first.position(begin + r) - map_.group().first_query(), cells_.data() + r * width);
}

/// A rough estimate, in seconds of one core, of the cells of the row at position i and of its softmax.
double seconds_a_row(const HeadGroup<float>& group, const EntryView& view, RowRange visible, Index i) {
  constexpr double kFlopsASecond = 6e10, kSecondsAnEntry = 15e-9;
  const double width = static_cast<double>(group.d() + group.d_v());
  const double seen = static_cast<double>(group.end_visible(i) - group.first_visible(i));
  const double quantities = view.against == EntryView::Against::nothing ? 1 : 2;
  const double heads = static_cast<double>(heads_of(view, group.G()).count());
  const double columns =
      view.against == EntryView::Against::rank ? seen : static_cast<double>(visible.count());
  const double cells = columns * quantities;
  return heads * (2 * width * (seen + cells) / kFlopsASecond + cells * kSecondsAnEntry);
}

/// Fills the rows of texels from which no row was taken.
void repeat_nearest(const HeadGroup<float>& group, const TileBuilder& builder, int level,
                    const std::vector<std::uint8_t>& taken, Tile& tile) {
  std::vector<Index> known;
  for (Index r = 0; r < tile.rows; ++r)
    if (taken[r] != 0) known.push_back(r);
  if (known.empty()) return;
  for (Index r = 0; r < tile.rows; ++r) {
    if (taken[r] != 0) continue;
    const auto after = std::lower_bound(known.begin(), known.end(), r);
    Index from = after == known.end() ? known.back() : *after;
    if (after != known.begin() && r - *(after - 1) < std::abs(from - r)) from = *(after - 1);
    const Index first = builder.first_row() + (r << level) + group.first_query();
    const Index last = std::min(first + (Index{1} << level), builder.end_row() + group.first_query()) - 1;
    const Index begin = group.first_visible(first), end = group.end_visible(last);
    for (Index c = 0; c < tile.columns; ++c) {
      const Index column = builder.first_column() + (c << level);
      if (column >= end || column + (Index{1} << level) <= begin) continue;
      tile.values[r * tile.columns + c] = tile.values[from * tile.columns + c];
    }
  }
}

}  // namespace

std::string why_not(const EntryView& view) {
  const EntryFacts &shown = kEntries[view.shown], &other = kEntries[view.other];
  const bool by_value =
      view.against == EntryView::Against::difference || view.against == EntryView::Against::relative;
  if (!by_value || shown.unit == other.unit) return "";
  return fmt::format(
      "{} is in another unit ({}) than {} ({}): their {} means nothing. Their ranks can be compared.",
      shown.name, shown.unit, other.name, other.unit,
      view.against == EntryView::Against::difference ? "difference" : "ratio");
}

Tile entry_tile(const EntryMap<float>& map, const EntryView& view, const TileKey& key, RowCache& rows,
                JobControl& job, const EntryMap<float>* minus) {
  const HeadGroup<float>& group = map.group();
  TileBuilder builder(entry_map_size(group), key);
  TileRows tile_rows(map, view, builder, job, minus);
  const Index first_query = group.first_query(), first_row = builder.first_row(), end_row = builder.end_row();
  const RowRange heads = heads_of(view, group.G());
  for (Index begin = first_row; begin < end_row;) {
    job.check();
    job.progress(static_cast<double>(begin - first_row) / static_cast<double>(end_row - first_row));
    const Index block = begin / RowCache::kBlockRows, block_row = block * RowCache::kBlockRows;
    const Index end = std::min(block_row + RowCache::kBlockRows, end_row);
    if (tile_rows.visible(first_query + begin, first_query + end - 1).count() > 0) {
      RowsOfMaps block_rows;
      for (Index g = heads.begin; g < heads.end; ++g) {
        block_rows.shown.push_back(rows.get(map, g, block, job));
        if (minus != nullptr) block_rows.minus.push_back(rows.get(*minus, g, block, job));
      }
      for (Index r = begin - block_row; r < end - block_row; r += ViewCells::rows_at_once())
        tile_rows.add(block_rows, r, std::min(r + ViewCells::rows_at_once(), end - block_row));
    }
    begin = end;
  }
  return builder.finish();
}

Tile entry_preview(const EntryMap<float>& map, const EntryView& view, const TileKey& key, JobControl& job,
                   const EntryMap<float>* minus, double seconds) {
  const HeadGroup<float>& group = map.group();
  TileBuilder builder(entry_map_size(group), key);
  TileRows tile_rows(map, view, builder, job, minus);
  const RowRange all{group.first_query() + builder.first_row(), group.first_query() + builder.end_row()};
  const RowRange visible = all.count() > 0 ? tile_rows.visible(all.begin, all.end - 1) : RowRange{};
  if (visible.count() == 0) return builder.finish();

  const Index middle = all.begin + all.count() / 2;
  const double a_row =
      (minus != nullptr ? 2 : 1) * seconds_a_row(group, view, tile_rows.visible(middle, middle), middle);
  const auto affordable = static_cast<Index>(std::clamp(seconds / a_row, 1.0, 1e9));
  const Index step = (all.count() + affordable - 1) / affordable;
  const RowRange sampled{all.begin + step / 2, all.end};  // a row in the middle of every `step`
  RowsOfMaps rows;
  const RowRange heads = heads_of(view, group.G());
  const auto some = [&](const EntryMap<float>& of, Index g) {
    return std::make_shared<const EntryRows<float>>(of.rows(g, sampled, job.workers(), step));
  };
  for (Index g = heads.begin; g < heads.end; ++g) {
    rows.shown.push_back(some(map, g));
    if (minus != nullptr) rows.minus.push_back(some(*minus, g));
  }
  const Index count = rows.shown.front()->count();
  for (Index r = 0; r < count; r += ViewCells::rows_at_once())
    tile_rows.add(rows, r, std::min(r + ViewCells::rows_at_once(), count));

  Tile tile = builder.finish();
  std::vector<std::uint8_t> taken(tile.rows, 0);
  for (Index r = 0; r < count; ++r) taken[(rows.shown.front()->position(r) - all.begin) >> key.level] = 1;
  repeat_nearest(group, builder, key.level, taken, tile);
  return tile;
}

double entry_exact(const HeadGroup<double>& group, const EntryView& view, Index row, Index token) {
  const RowRange heads = heads_of(view, group.G());
  const auto sum = [&](EntryTerm entry) {
    double total = 0;
    for (Index g = heads.begin; g < heads.end; ++g)
      total += entries_reference(group, g, row, entry, {token}).front();
    return entry == EntryTerm::logit ? total / static_cast<double>(heads.count()) : total;
  };
  if (view.against == EntryView::Against::rank) {
    std::vector<Index> tokens(group.T_all());
    std::iota(tokens.begin(), tokens.end(), Index{0});
    const auto place = [&](EntryTerm entry) {
      std::vector<double> total(tokens.size(), 0);
      for (Index g = heads.begin; g < heads.end; ++g) {
        const std::vector<double> one = entries_reference(group, g, row, entry, tokens);
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += one[i];
      }
      rank_shares(std::span(total));
      return total[static_cast<std::size_t>(token)];
    };
    return place(view.shown) - place(view.other);
  }
  const double shown = sum(view.shown);
  return view.against == EntryView::Against::nothing ? shown : compared(shown, view.against, sum(view.other));
}

}  // namespace kvreplay::viewer
