#include "sim/cache/cache_outputs.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

/// Prompt tokens that hold the same channels, their keys gathered one behind the other.
template <class T>
struct GatheredKeys {
  std::vector<Index> channels;   ///< ascending
  std::vector<Index> positions;  ///< [n], ascending
  Matrix<T> keys;                ///< [n, channels]
};

/// A cache on its way over the panels.
template <class T>
struct HeldCache {
  const Cache<T>& cache;
  /// Keys of the tokens that hold all channels, decoded ones among them, and of those that were pruned; none
  /// where logits are those of the group's own keys.
  std::vector<GatheredKeys<T>> gathered{};
};

/// True if a cache holds the whole prompt unchanged.
template <class T>
bool holds_the_same(const HeadGroup<T>& group, const Cache<T>& cache) {
  const Index l = group.l;
  if (count(cache.kept) < l || cache.pages.size > 0 || !cache.bias.isZero(0)) return false;
  if (cache.v.size() > 0 && cache.v.topRows(l) != group.v.topRows(l)) return false;
  return keys_held(group, cache).topRows(l) == group.k.topRows(l);
}

template <class T>
std::vector<GatheredKeys<T>> gather(const HeadGroup<T>& group, const Cache<T>& cache, Workers& workers) {
  const Index l = group.l;
  std::vector<GatheredKeys<T>> parts(2);
  for (Index c = 0; c < group.d(); ++c) {
    parts[0].channels.push_back(c);
    if (!cache.pruned.empty() && cache.pruned[c] == 0) parts[1].channels.push_back(c);
  }
  for (Index p = 0; p < group.T_all(); ++p)
    if (p >= l || cache.kept[p] != 0) parts[p < l && cache.loses_channels(p) ? 1 : 0].positions.push_back(p);
  for (GatheredKeys<T>& part : parts) {
    const auto n = std::ssize(part.positions);
    part.keys.resize(n, std::ssize(part.channels));
    constexpr Index kChunk = 256;
    workers.parallel_for(div_up(n, kChunk), [&](Index chunk) {
      for (Index row = chunk * kChunk; row < std::min((chunk + 1) * kChunk, n); ++row) {
        const Index p = part.positions[row];
        const T* key = (p < l && cache.k.size() > 0 ? cache.k.data() : group.k.data()) + p * group.d();
        T* out = part.keys.data() + row * part.keys.cols();
        for (std::size_t c = 0; c < part.channels.size(); ++c) out[c] = key[part.channels[c]];
      }
    });
  }
  return parts;
}

Index first_at(const std::vector<Index>& positions, Index position) {
  return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
}

/// One panel of rows of some query heads, from `first_head` on, over the columns of caches, a tile of them at
/// a time.
template <class T>
class PanelAttention {
 public:
  static constexpr Index W = kPanelWidth<T>;

  PanelAttention(const HeadGroup<T>& group, const TileInput<T>& in, const Vector<T>& centre, Index panel,
                 Index first_head, Index heads)
      : group_(group),
        in_(in),
        centre_(centre),
        panel_(panel),
        first_head_(first_head),
        heads_(heads),
        begin_(in.first_visible(in.panel_first(panel))),
        end_(in.end_visible(in.panel_last(panel))) {}

  /// The logits of the group's own keys, which caches that hold these whole may then share.
  void form_logits() {
    std::vector<T> q(in_.d * W);
    TileInput<T> mine = in_;
    mine.q_panels = q.data() - panel_ * in_.d * W;
    logits_.resize(heads_);
    for (Index h = 0; h < heads_; ++h) {
      pack_query_panel(group_, in_, first_head_ + h, panel_, q.data());
      logits_[h].resize((end_ - begin_) * W);
      if (!kept_tiles_simd<T>().logit_panel(mine, panel_, begin_, end_, logits_[h].data()))
        require_finite_logits(
            first_head_ + h, end_ - begin_, [&](Index t) { return begin_ + t; }, logits_[h].data());
    }
  }

  /// heads := the outputs over a cache.
  void attend(const HeldCache<T>& held, std::vector<AttendedOutput<T>>& heads) {
    std::vector<AttendedPanel<T>> panels;
    std::vector<std::vector<std::vector<T>>> queries;
    for (Index h = 0; h < heads_; ++h) {
      panels.emplace_back(sink_logit(group_, first_head_ + h), in_.d_v, heads[h]);
      if (!held.gathered.empty()) queries.push_back(queries_of(held, first_head_ + h));
    }
    columns_.clear();
    for (Index p = begin_; p < end_; ++p)
      if (p >= group_.l || held.cache.kept[p] != 0) columns_.push_back(p);
    for (Index first = 0; first < std::ssize(columns_); first += kTokensPassOne) {
      take_tile(held, first, std::min(kTokensPassOne, std::ssize(columns_) - first));
      for (Index h = 0; h < heads_; ++h) {
        const T* z = held.gathered.empty() ? shared_logits(held, h) : gathered_logits(held, queries[h], h);
        kept_tiles_simd<T>().attend_tile(z, row_.data(), tokens_, values_.data(), in_.d_v, panels[h]);
      }
    }
    for (AttendedPanel<T>& panel : panels) finish_attending(panel);
  }

 private:
  /// Where gathered keys are in the tile: the columns [from, from + n), whose logits have the rows from `row`
  /// on.
  struct Range {
    Index from, n, row;
  };

  /// The panel's queries in the channels that each of the gathered keys hold, [channels][W].
  std::vector<std::vector<T>> queries_of(const HeldCache<T>& held, Index g) const {
    std::vector<T> q(in_.d * W);
    pack_query_panel(group_, in_, g, panel_, q.data());
    std::vector<std::vector<T>> of_parts(held.gathered.size());
    for (std::size_t i = 0; i < of_parts.size(); ++i)
      for (const Index c : held.gathered[i].channels)
        of_parts[i].insert(of_parts[i].end(), q.begin() + c * W, q.begin() + (c + 1) * W);
    return of_parts;
  }

  /// The columns [first, first + tokens) and their values in the order of their positions, in which attention
  /// runs over them: how they fall into gathered parts then changes no byte of it.
  void take_tile(const HeldCache<T>& held, Index first, Index tokens) {
    tokens_ = tokens;
    tile_ = columns_.data() + first;
    std::array<Index, 2> next{0, 0};
    if (!held.gathered.empty()) {
      for (Index t = 0; t < tokens; ++t) next[1] += part_of(held, tile_[t]) == 0 ? 1 : 0;
      ranges_ = {Range{0, next[1], 0}, Range{0, tokens - next[1], next[1]}};
      for (std::size_t i = 0; i < ranges_.size(); ++i)
        ranges_[i].from = first_at(held.gathered[i].positions, tile_[0]);
    }
    const Cache<T>& cache = held.cache;
    for (Index t = 0; t < tokens; ++t) {
      const Index p = tile_[t];
      row_[t] = held.gathered.empty() ? p - begin_ : next[part_of(held, p)]++;
      const T* v = (p < group_.l && cache.v.size() > 0 ? cache.v.data() : group_.v.data()) + p * in_.d_v;
      for (Index c = 0; c < in_.d_v; ++c) values_[t * in_.d_v + c] = v[c] - centre_(c);
    }
  }
  int part_of(const HeldCache<T>& held, Index p) const {
    return p < group_.l && held.cache.loses_channels(p) ? 1 : 0;
  }

  /// The tile's logits, in the rows row_, of head h from its own keys.
  const T* shared_logits(const HeldCache<T>& held, Index h) {
    if (held.cache.bias.size() == 0 && held.cache.pages.size == 0) return logits_[h].data();
    for (Index t = 0; t < tokens_; ++t)
      std::copy_n(logits_[h].data() + (tile_[t] - begin_) * W, W, z_.data() + t * W);
    for (Index t = 0; t < tokens_; ++t) row_[t] = t;
    adjust(held.cache);
    return z_.data();
  }

  const T* gathered_logits(const HeldCache<T>& held, const std::vector<std::vector<T>>& q, Index h) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const GatheredKeys<T>& part = held.gathered[i];
      const Range& range = ranges_[i];
      const Index* positions = part.positions.data() + range.from;
      const Index depth = part.keys.cols();
      T* z = z_.data() + range.row * W;
      if (!kept_tiles_simd<T>().gathered_logits(in_, panel_, positions, range.n,
                                                part.keys.data() + range.from * depth, q[i].data(), depth, z))
        require_finite_logits(
            first_head_ + h, range.n, [&](Index t) { return positions[t]; }, z);
    }
    adjust(held.cache);
    return z_.data();
  }

  /// Biases of z_, and tokens that a row does not read.
  void adjust(const Cache<T>& cache) {
    for (Index t = 0; t < tokens_ && tile_[t] < group_.l; ++t) {
      T* z = z_.data() + row_[t] * W;
      if (cache.bias.size() > 0)
        for (Index r = 0; r < W; ++r) z[r] += cache.bias[tile_[t]];
      if (cache.pages.size > 0)
        for (Index i = in_.panel_first(panel_); i <= in_.panel_last(panel_); ++i)
          if (!cache.pages.reads(i, tile_[t]))
            z[i - in_.panel_first(panel_)] = -std::numeric_limits<T>::infinity();
    }
  }

  /// Throws where a row sees a logit beyond T: such logits pass for hidden ones, or for all there is.
  template <class PositionOf>
  void require_finite_logits(Index g, Index n, const PositionOf& position_of, const T* z) const {
    for (Index i = in_.panel_first(panel_); i <= in_.panel_last(panel_); ++i)
      for (Index t = 0; t < n; ++t)
        if (const Index p = position_of(t); p >= in_.first_visible(i) && p < in_.end_visible(i) &&
                                            !std::isfinite(z[t * W + i - in_.panel_first(panel_)]))
          report_overflow(group_, g, "position " + std::to_string(i));
  }

  const HeadGroup<T>& group_;
  const TileInput<T>& in_;
  const Vector<T>& centre_;
  Index panel_, first_head_, heads_, begin_, end_;
  std::vector<std::vector<T>> logits_;  // [heads] of [end - begin][W]
  std::vector<Index> columns_;          // positions
  const Index* tile_ = nullptr;
  Index tokens_ = 0;
  std::array<Range, 2> ranges_{};
  std::array<Index, kTokensPassOne> row_;  // of the logits, of each column
  std::vector<T> values_ = std::vector<T>(kTokensPassOne * in_.d_v);
  std::vector<T> z_ = std::vector<T>(kTokensPassOne * W);
};

/// At most so many numbers of logits to a work item.
template <class T>
constexpr Index kLogitsAtOnce = (Index{32} << 20) / static_cast<Index>(sizeof(T));

/// Partial sums of one work item (query head, panel); the items are added in order.
struct ItemSums {
  double full_sq = 0;
  std::vector<double> change_sq{};
};

/// Caches against the outputs over everything, [G][panels]: of what was attended before, or (null) formed
/// here.
template <class T>
struct Pass {
  const HeadGroup<T>& group;
  RowRange rows;
  const Vector<T>& centre;
  const std::vector<AttendedOutput<T>>* before;
  bool with_vectors;
  std::vector<AttendedOutput<T>>* keep = nullptr;  ///< takes the outputs over everything where not null

  OutputChanges<T> run(std::span<const Cache<T>> caches, Workers& workers) const {
    const TileInput<T> in = tile_input(group, PreparedValues<T>(), rows);
    const Index G = group.G(), panels = in.panels(), panel_size = in.d_v * kPanelWidth<T>;
    OutputChanges<T> result;
    if (with_vectors) {
      const PanelRows<T> empty(G, std::vector<T>(panels * panel_size));
      if (before == nullptr) result.full = empty;
      result.change.assign(caches.size(), empty);
    }
    const Cache<T> everything{KeptSet(group.l, 1)};
    std::vector<HeldCache<T>> held;
    for (const Cache<T>& cache : caches) {
      held.push_back({cache});
      if (before != nullptr || cache.k.size() > 0 || !cache.pruned.empty())
        held.back().gathered = gather(group, cache, workers);
    }
    const Index together = heads_together(
        G, panels, workers.threads(),
        before != nullptr ? kHeadsTogether : kLogitsAtOnce<T> / (group.T_all() * kPanelWidth<T>));
    const Index chunks = div_up(G, together);
    std::vector<ItemSums> items(G * panels);
    // The later panels see the most: they come first, so that a short item ends the queue.
    workers.parallel_for(chunks * panels, [&](Index item) {
      const Index first = item % chunks * together, panel = panels - 1 - item / chunks;
      const Index heads = std::min(together, G - first);
      PanelAttention<T> attention(group, in, centre, panel, first, heads);
      const auto put_change = [&](const AttendedOutput<T>& output, const AttendedOutput<T>* from, Index h,
                                  PanelRows<T>* into) {
        T* vectors = into != nullptr ? (*into)[first + h].data() + panel * panel_size : nullptr;
        return kept_tiles_simd<T>().output_change(output, from, centre.data(), in.panel_rows(panel), vectors);
      };
      std::vector<AttendedOutput<T>> full(heads), output(heads);
      if (before == nullptr) {
        attention.form_logits();
        attention.attend({everything}, full);
        for (Index h = 0; h < heads; ++h)
          items[(first + h) * panels + panel].full_sq =
              put_change(full[h], nullptr, h, with_vectors ? &result.full : nullptr);
      }
      for (std::size_t c = 0; c < caches.size(); ++c) {
        attention.attend(held[c], output);
        for (Index h = 0; h < heads; ++h) {
          const Index at = (first + h) * panels + panel;
          items[at].change_sq.push_back(put_change(output[h], before != nullptr ? &(*before)[at] : &full[h],
                                                   h, with_vectors ? &result.change[c] : nullptr));
        }
      }
      for (Index h = 0; h < heads; ++h) {
        const Index at = (first + h) * panels + panel;
        require_finite(items[at], first + h, in.panel_first(panel));
        if (keep != nullptr) (*keep)[at] = std::move(full[h]);
      }
    });
    result.change_sq.assign(caches.size(), 0.0);
    for (const ItemSums& item : items) {
      result.full_sq += item.full_sq;
      for (std::size_t c = 0; c < caches.size(); ++c) result.change_sq[c] += item.change_sq[c];
    }
    return result;
  }

  void require_finite(const ItemSums& sums, Index g, Index panel_first) const {
    double all = sums.full_sq;
    for (const double change : sums.change_sq) all += change;
    if (!std::isfinite(all)) report_overflow(group, g, "positions from " + std::to_string(panel_first));
  }
};

/// Vectors of `rows` rows in T's panels.
template <class T>
PanelRows<T> in_panels_of(const PanelRows<double>& heads, Index rows, Index d_v) {
  PanelRows<T> panels;
  for (const std::vector<double>& head : heads) {
    std::vector<T>& to = panels.emplace_back(panels_of<T>(rows) * d_v * kPanelWidth<T>);
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < d_v; ++c)
        to[panel_entry<T>(c, r, d_v)] = static_cast<T>(head[panel_entry<double>(c, r, d_v)]);
  }
  return panels;
}

}  // namespace

template <class T>
OutputChanges<T> output_changes(const HeadGroup<T>& group, RowRange rows,
                                std::span<const std::type_identity_t<Cache<T>>> caches, bool with_vectors,
                                Workers& workers) {
  const Vector<T> centre = value_centre(group);
  OutputChanges<T> found = Pass<T>{group, rows, centre, nullptr, with_vectors}.run(caches, workers);
  if (!vanishing(group, rows, centre, found.full_sq)) return found;
  return vanishing_output_changes(group, rows, caches, with_vectors, workers);
}

template <class T>
struct CacheOutputs<T>::Wide {
  Wide(const HeadGroup<T>& narrow, RowRange rows, Workers& workers)
      : group(converted<double>(narrow)),
        outputs(group, rows, workers, Vector<double>::Zero(narrow.d_v())),
        lost(outputs.full_sq() < std::numeric_limits<double>::min() && !group.v.isZero(0)) {}

  const HeadGroup<double> group;
  const CacheOutputs<double> outputs;
  const bool lost;  // the outputs' squares, below float64's range
};

template <class T>
CacheOutputs<T>::CacheOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers)
    : CacheOutputs(group, rows, workers, value_centre(group)) {
  if (!vanishing(group, rows, centre_, full_sq_)) return;
  wide_ = std::make_shared<const Wide>(group, rows, workers);
  full_sq_ = wide_->outputs.full_sq();
  full_ = in_panels_of<T>(wide_->outputs.full(), rows.count(), group.d_v());
}

template <class T>
CacheOutputs<T>::CacheOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers, Vector<T> centre)
    : group_(group), rows_(rows), workers_(workers), centre_(std::move(centre)) {
  attended_.resize(group.G() * panels_of<T>(rows.count()));
  OutputChanges<T> found = Pass<T>{group, rows, centre_, nullptr, true, &attended_}.run({}, workers);
  full_sq_ = found.full_sq;
  full_ = std::move(found.full);
}

template <class T>
typename CacheOutputs<T>::Change CacheOutputs<T>::change(const Cache<T>& cache, bool with_vectors) const {
  if (wide_) {
    const auto found = wide_->outputs.change(converted<double>(cache), with_vectors);
    const bool alike = !wide_->lost || holds_the_same(group_, cache);
    return {alike ? found.change_sq : at_least_some(found.change_sq),
            in_panels_of<T>(found.vectors, rows_.count(), group_.d_v())};
  }
  OutputChanges<T> found =
      Pass<T>{group_, rows_, centre_, &attended_, with_vectors}.run({&cache, 1}, workers_);
  return {found.change_sq.front(), with_vectors ? std::move(found.change.front()) : PanelRows<T>()};
}

template <class T>
OutputChanges<T> vanishing_output_changes(const HeadGroup<T>& group, RowRange rows,
                                          std::span<const Cache<T>> caches, bool with_vectors,
                                          Workers& workers) {
  const CacheOutputs<T> outputs(group, rows, workers);
  OutputChanges<T> result{outputs.full_sq(), {}, with_vectors ? outputs.full() : PanelRows<T>(), {}};
  for (const Cache<T>& cache : caches) {
    auto change = outputs.change(cache, with_vectors);
    result.change_sq.push_back(change.change_sq);
    if (with_vectors) result.change.push_back(std::move(change.vectors));
  }
  return result;
}

template class CacheOutputs<float>;
template class CacheOutputs<double>;
template decltype(output_changes<float>) output_changes<float>;
template decltype(output_changes<double>) output_changes<double>;
template decltype(vanishing_output_changes<float>) vanishing_output_changes<float>;
template decltype(vanishing_output_changes<double>) vanishing_output_changes<double>;

}  // namespace kvreplay
