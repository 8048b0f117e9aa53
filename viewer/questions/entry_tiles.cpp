#include "viewer/questions/entry_tiles.hpp"

#include "sim/simd/panel.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/ask.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

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
  /// Adds the rows with numbers [begin, end) of `rows`, at most ViewCells::rows_at_once().
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

namespace {

template <class T>
void rank(std::span<T> values) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  const std::size_t last = order.size() > 1 ? order.size() - 1 : 1;
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    const T place = static_cast<T>(first + end - 1) / static_cast<T>(2 * last);
    for (; first < end; ++first) values[order[first]] = place;
  }
}

}  // namespace

void rank_shares(std::span<float> values) { rank(values); }
void rank_shares(std::span<double> values) { rank(values); }

RowRange heads_of(const EntryView& view, Index G) {
  return view.query_head ? RowRange{*view.query_head, *view.query_head + 1} : RowRange{0, G};
}

Index ViewCells::rows_at_once() { return kPanelWidth<float>; }

ViewCells::ViewCells(const EntryMap<float>& map, const EntryView& view, JobControl& job,
                     const EntryMap<float>* minus)
    : map_(map), view_(view), job_(job) {
  if (minus != nullptr) minus_ = std::make_unique<ViewCells>(*minus, view, job);
  constexpr Index kNumbersAtOnce = Index{1} << 19;
  at_once_ = std::clamp<Index>(kNumbersAtOnce / (map.group().d() + map.group().d_v()), 128, 8192);
}

void ViewCells::sum_over_heads(const HeadRows& rows, EntryTerm entry, RowRange take, RowRange tokens,
                               std::vector<float>& sum) {
  for (std::size_t g = 0; g < rows.size(); ++g) {
    job_.check();
    map_.entries(*rows[g], entry, take, tokens.begin, tokens.end, g == 0 ? sum.data() : term_.data());
    if (g == 0) continue;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term_[i];
  }
  if (entry != EntryTerm::logit || rows.size() == 1) return;
  for (float& x : sum) x /= static_cast<float>(rows.size());
}

const std::vector<float>& ViewCells::cells(const RowsOfMaps& rows, Index begin, Index end, RowRange tokens) {
  const std::vector<float>& own = own_cells(rows.shown, begin, end, tokens);
  if (!minus_) return own;
  const std::vector<float>& other = minus_->own_cells(rows.minus, begin, end, tokens);
  for (std::size_t i = 0; i < own.size(); ++i) shown_[i] -= other[i];  // what `own` is
  return shown_;
}

const std::vector<float>& ViewCells::own_cells(const HeadRows& rows, Index begin, Index end,
                                               RowRange tokens) {
  return view_.against == EntryView::Against::rank ? rank_cells(rows, begin, end, tokens)
                                                   : compared_cells(rows, begin, end, tokens);
}

const std::vector<float>& ViewCells::compared_cells(const HeadRows& rows, Index begin, Index end,
                                                    RowRange tokens) {
  const EntryRows<float>& first = *rows.front();
  const RowRange take{first.position(begin), first.position(end - 1) + 1};
  const auto size = static_cast<std::size_t>((end - begin) * tokens.count());
  shown_.resize(size);
  term_.resize(size);
  sum_over_heads(rows, view_.shown, take, tokens, shown_);
  if (view_.against == EntryView::Against::nothing) return shown_;
  other_.resize(size);
  sum_over_heads(rows, view_.other, take, tokens, other_);
  if (view_.against == EntryView::Against::rank)
    for (Index r = 0; r < end - begin; ++r)
      for (std::vector<float>* cells : {&shown_, &other_})
        rank_shares({cells->data() + r * tokens.count(), static_cast<std::size_t>(tokens.count())});
  for (std::size_t i = 0; i < size; ++i) shown_[i] = compared(shown_[i], view_.against, other_[i]);
  return shown_;
}

/// A place is one among all tokens of the row.
const std::vector<float>& ViewCells::rank_cells(const HeadRows& rows, Index begin, Index end,
                                                RowRange tokens) {
  const EntryRows<float>& first = *rows.front();
  if (ranked_ != rows.front() || ranked_begin_ != begin || ranked_end_ != end) {
    seen_ = {map_.group().first_visible(first.position(begin)),
             map_.group().end_visible(first.position(end - 1))};
    ranks_ = compared_cells(rows, begin, end, seen_);
    ranked_ = rows.front();
    ranked_begin_ = begin;
    ranked_end_ = end;
  }
  const Index n = end - begin;
  shown_.assign(static_cast<std::size_t>(n * tokens.count()), kNaN);
  const RowRange both{std::max(tokens.begin, seen_.begin), std::min(tokens.end, seen_.end)};
  for (Index r = 0; r < n && both.count() > 0; ++r)
    std::copy_n(ranks_.data() + r * seen_.count() + (both.begin - seen_.begin), both.count(),
                shown_.data() + r * tokens.count() + (both.begin - tokens.begin));
  return shown_;
}

namespace {

HeadRows rows_of(const EntryMap<float>& map, RowRange heads, Index block, Index step, RowCache& cache,
                 JobControl& job) {
  const HeadGroup<float>& group = map.group();
  const Index begin = group.first_query() + block * kRowValues * step;
  const RowRange positions{begin, std::min(begin + kRowValues * step, group.T_all())};
  HeadRows rows;
  for (Index g = heads.begin; g < heads.end; ++g)
    rows.push_back(
        step == 1 ? cache.get(map, g, block, job)
                  : std::make_shared<const EntryRows<float>>(map.rows(g, positions, job.workers(), step)));
  return rows;
}

double with(double so_far, float cell, bool adds_up) {
  const auto value = static_cast<double>(cell);
  if (std::isnan(value)) return so_far;
  if (std::isnan(so_far)) return value;
  if (adds_up) return so_far + value;
  return std::abs(value) > std::abs(so_far) ? value : so_far;
}

}  // namespace

bool row_adds_up(const EntryView& view) {
  return view.against == EntryView::Against::nothing && view.shown != EntryTerm::logit &&
         view.shown != EntryTerm::attn;
}

RowValues row_values(const EntryMap<float>& map, const EntryView& view, Index block, Index step,
                     RowCache& cache, JobControl& job, const EntryMap<float>* minus) {
  const HeadGroup<float>& group = map.group();
  const bool adds_up = minus == nullptr && row_adds_up(view);
  RowValues found;
  if (block * kRowValues * step >= group.T_q()) return found;
  const RowRange heads = heads_of(view, group.G());
  RowsOfMaps rows{rows_of(map, heads, block, step, cache, job)};
  if (minus != nullptr) rows.minus = rows_of(*minus, heads, block, step, cache, job);
  const EntryRows<float>& first = *rows.shown.front();
  ViewCells cells_of(map, view, job, minus);
  std::vector<double> values(first.count(), kNaN);
  for (Index begin = 0; begin < first.count(); begin += ViewCells::rows_at_once()) {
    const Index end = std::min(begin + ViewCells::rows_at_once(), first.count());
    const RowRange seen{group.first_visible(first.position(begin)),
                        group.end_visible(first.position(end - 1))};
    for (Index from = seen.begin; from < seen.end; from += cells_of.tokens_at_once()) {
      const RowRange tokens{from, std::min(from + cells_of.tokens_at_once(), seen.end)};
      const std::vector<float>& cells = cells_of.cells(rows, begin, end, tokens);
      auto cell = cells.begin();
      for (Index r = begin; r < end; ++r)
        for (Index p = 0; p < tokens.count(); ++p, ++cell) {
          double& value = values[r];
          value = with(value, *cell, adds_up);
        }
    }
    job.progress(static_cast<double>(end) / static_cast<double>(first.count()));
  }
  found.values.assign(values.begin(), values.end());
  return found;
}

namespace {

/// A head group with its values centred: what all its tiles are made from.
struct SharedMap {
  std::shared_ptr<const EntryMap<float>> map;
};
std::size_t bytes_of(const SharedMap& shared) {
  const HeadGroup<float>& group = shared.map->group();
  return static_cast<std::size_t>(group.T_all() * group.d_v()) * sizeof(float);
}

constexpr std::size_t kRowBytes = std::size_t{128} << 20;
/// Cells of a tile beyond which a hand does not want to wait for all of them.
constexpr double kQuickCells = 6e6;

Answer<SharedMap> ask_map(PanelContext& context, const std::shared_ptr<const Run>& run,
                          const EntryView& view) {
  const JobRequest request{.key = {run->key(), "entry_map", view.layer, view.kv_head},
                           .title = "Reading " + run->head_text(view.layer, view.kv_head),
                           .urgency = Urgency::now};
  return context.queue.ask<SharedMap>(request, [run, view](JobControl& job) {
    return SharedMap{
        std::make_shared<const EntryMap<float>>(run->head(view.layer, view.kv_head), job.workers())};
  });
}

/// The maps of the selected run and of the one that is subtracted from it, where there is one.
struct AskedMaps {
  std::shared_ptr<const EntryMap<float>> shown, minus;
  bool there = false, pending = false;
  std::string error;
};
AskedMaps ask_maps(PanelContext& context, const EntryView& view) {
  AskedMaps maps;
  const Answer<SharedMap> shown = ask_map(context, context.state.run(), view);
  maps.there = static_cast<bool>(shown);
  maps.pending = shown.pending;
  maps.error = shown.error;
  if (shown) maps.shown = shown->map;
  const std::shared_ptr<const Run> subtracted = context.state.subtracted();
  if (!subtracted || subtracted->dump() == nullptr) return maps;
  const Answer<SharedMap> minus = ask_map(context, subtracted, view);
  maps.there &= static_cast<bool>(minus);
  maps.pending |= minus.pending;
  if (maps.error.empty()) maps.error = minus.error;
  if (minus) maps.minus = minus->map;
  return maps;
}

}  // namespace

EntryQuestions::EntryQuestions() : rows_(std::make_shared<RowCache>(kRowBytes)) {}

Key EntryQuestions::key_of(PanelContext& context, const EntryView& view) {
  Key key(context.state.run()->key(), "entries", view.layer, view.kv_head, view.query_head, view.shown,
          view.against);
  if (view.against != EntryView::Against::nothing) key = {key, view.other};
  const std::shared_ptr<const Run> subtracted = context.state.subtracted();
  return subtracted && subtracted->dump() != nullptr ? Key(key, "minus", subtracted->key()) : key;
}

Answer<Tile> EntryQuestions::tile(PanelContext& context, const EntryView& view, const TileKey& key) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const AskedMaps maps = ask_maps(context, view);
  if (!maps.there) return {nullptr, maps.pending, false, maps.error};

  const DumpShape& shape = run->shape();
  const double side = static_cast<double>(kTileSize) * static_cast<double>(Index{1} << key.level);
  const double cells = std::min(side, static_cast<double>(shape.T_q)) *
                       std::min(side, static_cast<double>(shape.T)) *
                       static_cast<double>(view.query_head ? 1 : shape.group());
  const bool takes_long = cells > kQuickCells;
  JobRequest request;
  request.key = {key_of(context, view), "tile", key.level, key.row, key.column};
  request.title =
      fmt::format("{} of {}, {} x {} cells", name_of(view.shown), run->head_text(view.layer, view.kv_head),
                  static_cast<Index>(side), static_cast<Index>(side));
  request.urgency = takes_long ? Urgency::background : Urgency::soon;
  request.fills = true;
  Answer<Tile> exact = context.queue.ask<Tile>(request, [maps, view, key, rows = rows_](JobControl& job) {
    return entry_tile(*maps.shown, view, key, *rows, job, maps.minus.get());
  });
  if (exact || !exact.pending || !takes_long) return exact;
  request.key = {request.key, "preview"};
  request.title += ", a first look";
  request.urgency = Urgency::now;  // short by its making: not to wait behind sums over the whole head
  Answer<Tile> preview = context.queue.ask<Tile>(request, [maps, view, key](JobControl& job) {
    return entry_preview(*maps.shown, view, key, job, maps.minus.get());
  });
  preview.pending = true;
  return preview;
}

Answer<RowValues> EntryQuestions::rows(PanelContext& context, const EntryView& view, Index block,
                                       Index step) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const AskedMaps maps = ask_maps(context, view);
  if (!maps.there) return {nullptr, maps.pending, false, maps.error};
  const DumpShape& shape = run->shape();
  const double cells = static_cast<double>(kRowValues) * static_cast<double>(shape.T) *
                       static_cast<double>(view.query_head ? 1 : shape.group());
  const JobRequest request{.key = {key_of(context, view), "rows", block, step},
                           .title = fmt::format("Queries of {}, {}", name_of(view.shown),
                                                run->head_text(view.layer, view.kv_head)),
                           .urgency = cells > kQuickCells ? Urgency::background : Urgency::soon,
                           .fills = true};
  return context.queue.ask<RowValues>(request, [maps, view, block, step, cache = rows_](JobControl& job) {
    return row_values(*maps.shown, view, block, step, *cache, job, maps.minus.get());
  });
}

}  // namespace kvreplay::viewer
